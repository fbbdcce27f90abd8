// dsec build: a context goes up, the server builds, the steps are shown.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <thread>

#include "base/encoding.h"
#include "cli/build_display.h"
#include "cli/dockerignore.h"
#include "cli/operation.h"
#include "cli/progress.h"
#include "cli/tar_writer.h"
#include "cli/terminal.h"
#include "cli/units_text.h"
#include "cli/verbs.h"
#include "sys/file.h"

namespace dsec::cli {
namespace {

constexpr std::size_t kMaxDockerfile = 1 << 20;
constexpr std::size_t kMaxIgnore = 1 << 20;
constexpr std::size_t kMaxSecret = 64 << 10;
constexpr int kInterrupted = 130;

Result<std::string> read_standard_input() {
  std::string out;
  char buffer[65536];
  for (ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer); n != 0; n = ::read(STDIN_FILENO, buffer, sizeof buffer)) {
    if (n < 0) return errno_error("read standard input", errno);
    out.append(buffer, static_cast<std::size_t>(n));
    if (out.size() > kMaxDockerfile) return Error(ErrorCode::kTooLarge, "a Dockerfile has at most 1 MiB");
  }
  return out;
}

// "id=NAME,src=FILE"
Result<std::pair<std::string, std::string>> read_secret_option(const std::string& text) {
  std::string id, source;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    const std::string_view key = item.substr(0, item.find('='));
    const std::string value = key.size() == item.size() ? "" : std::string(item.substr(key.size() + 1));
    if (key == "id") id = value;
    else if (key == "src" || key == "source") source = value;
    else if (key != "type" || value != "file") return invalid_argument("--secret: id=NAME,src=FILE");
  }
  if (id.empty() || source.empty()) return invalid_argument("--secret: id=NAME,src=FILE");
  DSEC_ASSIGN(std::string bytes, sys::read_file(source, kMaxSecret).within("--secret " + id));
  return std::pair(std::move(id), std::move(bytes));
}

Result<json::object> body_of(const BuildVerbOptions& options, const std::string& dockerfile) {
  json::object body{{"name", options.name}, {"dockerfile", dockerfile}};
  json::object args;
  for (const std::string& arg : options.args) {
    const std::size_t equals = arg.find('=');
    const std::string name = arg.substr(0, equals);
    const char* own = equals == std::string::npos ? std::getenv(name.c_str()) : nullptr;  // NOLINT(concurrency-mt-unsafe): no other thread yet
    if (equals == std::string::npos && own == nullptr) continue;  // as docker: not set here, not given
    args[name] = equals == std::string::npos ? std::string(own) : arg.substr(equals + 1);
  }
  if (!args.empty()) body["args"] = std::move(args);
  json::object secrets;
  for (const std::string& text : options.secrets) {
    DSEC_ASSIGN(const auto secret, read_secret_option(text));
    secrets[secret.first] = to_base64(secret.second);
  }
  if (!secrets.empty()) body["secrets"] = std::move(secrets);
  json::array services;
  for (const std::string& service : options.services) services.emplace_back(service);
  if (!services.empty()) body["services"] = std::move(services);
  if (!options.target.empty()) body["target"] = options.target;
  if (!options.profile.empty()) body["profile"] = options.profile;
  if (options.no_cache) body["no_cache"] = true;
  if (options.timeout_seconds != 0) body["timeout_seconds"] = options.timeout_seconds;
  json::object resources;
  if (options.memory_mb != 0) resources["memory_mb"] = options.memory_mb;
  if (options.disk_mb != 0) resources["disk_mb"] = options.disk_mb;
  if (!resources.empty()) body["resources"] = std::move(resources);
  return body;
}

Result<DockerIgnore> ignore_of(const std::string& context, const std::string& dockerfile) {
  for (const std::string& path : {dockerfile + ".dockerignore", context + "/.dockerignore"}) {
    const Result<std::string> text = sys::read_file(path, kMaxIgnore);
    if (text.ok()) return DockerIgnore(*text);
    if (text.error().error_number() != ENOENT && text.error().error_number() != ENOTDIR) return text.error();
  }
  return DockerIgnore();
}

Result<std::string> send_context(Context& context, const std::string& directory, const DockerIgnore& ignore, Progress* progress) {
  TarWriter::Options options{.owner = Owner{}, .prefix = {}};
  options.skip = [&ignore](const std::string& name) { return ignore.ignores(name); };
  options.descend = ignore.has_exceptions();
  DSEC_ASSIGN(TarWriter writer, TarWriter::open(directory, options));
  HttpCall call;
  call.method = "POST";
  call.target = "/v1/builds/contexts";
  call.headers = {{"Content-Type", "application/x-tar"}};
  call.timeout = std::chrono::hours(2);
  call.body_source = [&]() -> Result<std::string> {
    DSEC_ASSIGN(std::string part, writer.next());
    if (progress) progress->update(part.empty() ? "the server reads the context" : "sending the context", writer.content_bytes(), 0);
    return part;
  };
  DSEC_ASSIGN(const HttpAnswer answer, context.raw(call).within("send the context"));
  boost::system::error_code failure;
  const json::value value = json::parse(answer.body, failure);
  std::string id = !failure && value.is_object() ? text_at(value.get_object(), "context") : "";
  if (id.empty()) return Error(ErrorCode::kInternal, "the server's answer names no context");
  return id;
}

// Ctrl-C cancels the build and waits for its end; a second one does not wait.
class CancelOnInterrupt {
 public:
  CancelOnInterrupt(GlobalOptions global, std::string operation) : done_(::eventfd(0, EFD_CLOEXEC)) {
    Result<SignalWatch> watch = SignalWatch::watch({SIGINT, SIGTERM});
    if (!watch.ok() || !done_) return;
    watch_.emplace(std::move(watch).value());
    thread_ = std::thread([this, global = std::move(global), operation = std::move(operation)] {
      for (;;) {
        pollfd fds[2] = {{watch_->fd(), POLLIN, 0}, {done_.get(), POLLIN, 0}};
        if (::poll(fds, 2, -1) < 0 && errno != EINTR) return;
        if ((fds[1].revents & POLLIN) != 0) return;
        if ((fds[0].revents & POLLIN) == 0 || watch_->next() == 0) continue;
        if (interrupted_.exchange(true)) ::_exit(kInterrupted);
        Context own(global);
        (void)own.call("DELETE", "/v1/operations/" + percent_encode(operation));
      }
    });
  }
  ~CancelOnInterrupt() {
    if (!thread_.joinable()) return;
    const std::uint64_t one = 1;
    (void)!::write(done_.get(), &one, sizeof one);
    thread_.join();
  }
  CancelOnInterrupt(const CancelOnInterrupt&) = delete;
  CancelOnInterrupt& operator=(const CancelOnInterrupt&) = delete;
  bool interrupted() const { return interrupted_; }

 private:
  sys::Fd done_;
  std::optional<SignalWatch> watch_;
  std::atomic<bool> interrupted_{false};
  std::thread thread_;
};

}  // namespace

int build_verb(Context& context, const BuildVerbOptions& options) {
  const std::string file = options.file.empty() ? options.context + "/Dockerfile" : options.file;
  const auto dockerfile = file == "-" ? read_standard_input() : sys::read_file(file, kMaxDockerfile);
  if (!dockerfile.ok()) return fail(dockerfile.error(), kUsage);
  auto body = body_of(options, *dockerfile);
  if (!body.ok()) return fail(body.error(), kUsage);
  const auto ignore = ignore_of(options.context, file);
  if (!ignore.ok()) return fail(ignore.error(), kUsage);
  const bool silent = options.quiet || options.json;
  std::optional<Progress> progress;
  if (!silent) progress.emplace(options.name);
  auto sent = send_context(context, options.context, *ignore, progress ? &*progress : nullptr);
  if (progress) progress->clear();
  if (!sent.ok()) return fail(sent.error());
  (*body)["context"] = *sent;
  const auto started = context.post("/v1/builds", *body);
  if (!started.ok()) return fail(started.error());
  const std::string id = started->is_object() ? text_at(started->get_object(), "operation_id") : "";
  if (id.empty()) return fail(Error(ErrorCode::kInternal, "the server's answer names no operation"));

  BuildDisplay display(silent ? BuildDisplay::Form::kSilent : is_terminal(STDERR_FILENO) ? BuildDisplay::Form::kTerminal : BuildDisplay::Form::kPlain);
  json::object operation;
  bool interrupted = false;
  {
    const CancelOnInterrupt cancel(context.options(), id);
    const auto followed = context.events("/v1/operations/" + percent_encode(id) + "/events", [&](const json::object& event) -> Result<void> {
      display.take(event);
      if (!event.contains("offset")) operation = event;
      return {};
    });
    interrupted = cancel.interrupted();
    display.clear();
    if (!followed.ok()) return fail(followed.error());
  }
  const std::string state = text_at(operation, "state");
  if (options.json) print(pretty(operation) + "\n");
  if (state == "cancelled") return fail(Error(ErrorCode::kCancelled, "the build was cancelled"), interrupted ? kInterrupted : kFailed);
  if (state == "failed") {
    const std::string message = text_at(operation, "error.message");
    const std::size_t first = std::min(message.find('\n'), message.size());
    display.show_last_words(std::string_view(message).substr(std::min(message.size(), first + 1)));
    return fail(Error(ErrorCode::kInvalidArgument, message.substr(0, first)));
  }
  if (state != "succeeded") return fail(Error(ErrorCode::kUnavailable, "the server stopped while operation " + id + " was " + state));
  const json::object& record = operation["result"].get_object();
  if (const json::value* warnings = record.if_contains("warnings"); warnings != nullptr && warnings->is_array()) {
    for (const json::value& warning : warnings->get_array()) note("warning: " + std::string(warning.get_string()));
  }
  if (options.json) return kOk;
  if (options.quiet) print(text_at(record, "digest") + "\n");
  else
    print(options.name + "  " + text_at(record, "digest") + "  " + text_at(record, "entries") + " entries, " + bytes_text(static_cast<std::uint64_t>(number_at(record, "content_bytes"))) +
          " of files, " + text_at(record, "cached_steps") + " steps from the cache\n");
  return kOk;
}

}  // namespace dsec::cli
