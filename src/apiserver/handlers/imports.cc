// Import: the body of a request goes through a pipe to the importer, which runs
// on a thread of its own. The pipe is the back-pressure.
#include <fcntl.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <array>

#include "apiserver/handlers/handlers.h"
#include "base/encoding.h"
#include "base/log.h"
#include "model/json.h"
#include "net/blocking.h"

namespace dsec::apiserver {
namespace json = boost::json;
namespace {

enum class Form { kTar, kOci, kDebian };

struct ImportRequest {
  model::RefName name;
  model::LayerKind kind = model::LayerKind::kBase;
  Form form = Form::kTar;
  std::string suite;                  // kDebian
  std::vector<std::string> packages;  // kDebian
  image::ImportOptions options;
};

store::RefKind ref_kind(model::LayerKind kind) {
  return kind == model::LayerKind::kBase        ? store::RefKind::kImage
         : kind == model::LayerKind::kWorkspace ? store::RefKind::kWorkspace
                                                : store::RefKind::kToolkit;
}

// "debian:bookworm,git,python3". Names are checked here and again where they are used.
Result<void> parse_debian(const std::string& source, ImportRequest& out) {
  const auto plain = [](const std::string& text) {
    return !text.empty() && text.size() <= 100 && text[0] != '-' && text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789+.-") == std::string::npos;
  };
  std::string rest = source.substr(sizeof "debian:" - 1);
  for (bool first = true; first || !rest.empty(); first = false) {
    const std::string item = rest.substr(0, rest.find(','));
    rest.erase(0, item.size() + 1);
    if (!plain(item)) return invalid_argument("source: not a suite or package name: " + item);
    if (first) {
      out.suite = item;
    } else {
      out.packages.push_back(item);
    }
  }
  out.form = Form::kDebian;
  return {};
}

Result<ImportRequest> parse_request(const Call& call, bool image) {
  const net::HttpRequest& request = call.request();
  DSEC_TRY(check_parameters(request, {"name", "kind", "at", "format", "profile", "source", "label"}));
  const auto text = [&request](const char* name) {
    const std::string* value = request.parameter(name);
    return value == nullptr ? std::string() : *value;
  };
  ImportRequest out;
  if (text("name").empty()) return invalid_argument("name: what the layer is to be called is missing");
  DSEC_ASSIGN(out.name, model::parse_ref(text("name")));
  if (const std::string kind = text("kind"); !kind.empty()) {
    DSEC_ASSIGN(out.kind, model::parse_layer_kind(kind));
    if (image && out.kind != model::LayerKind::kBase) return invalid_argument("kind: an image is a base; use /v1/layers");
  } else if (!image) {
    return invalid_argument("kind: base, workspace or toolkit");
  }
  out.options.kind = out.kind;
  out.options.at = text("at");
  if (!out.options.at.empty() && out.options.at[0] != '/') return invalid_argument("at: an absolute path inside the sandbox");
  out.options.source_label = text("label");
  if (const std::string profile = text("profile"); !profile.empty()) {
    DSEC_ASSIGN(out.options.profile, image::parse_profile(profile));
  }
  const std::string format = text("format");
  if (format == "oci" || format == "docker" || format == "docker-archive") {
    out.form = Form::kOci;
  } else if (!format.empty() && format != "tar") {
    return invalid_argument("format: tar, oci or docker-archive");
  }
  if (const std::string source = text("source"); !source.empty()) {
    if (source.starts_with("debian:")) {
      DSEC_TRY(parse_debian(source, out));
      out.options.source_label = source;
    } else if (source.starts_with("docker://")) {
      return Error(ErrorCode::kUnsupported, "source: pulling from a registry comes with the layer store; save the image and import docker-archive:PATH");
    } else {
      return invalid_argument("source: debian:SUITE[,package...]");
    }
  }
  return out;
}

Result<model::LayerRecord> import_by(image::Importer& importer, const ImportRequest& request, const image::ImportOptions& options, int input) {
  switch (request.form) {
    case Form::kTar:
      return importer.import_tar(input, options);
    case Form::kOci:
      return importer.import_oci(input, options);
    case Form::kDebian:
      return importer.import_debian(request.suite, request.packages, options);
  }
  return Error(ErrorCode::kInternal, "an import of no form");
}

// On a worker thread. A store that cannot be reached does not take from the node
// what it has: `dsec layer sync` puts the layer there later.
Result<model::LayerRecord> run_import(const ServerParts& parts, const ImportRequest& request, const image::ImportOptions& options, int input) {
  Result<model::LayerRecord> record = import_by(parts.importer, request, options, input);
  if (!record.ok() || parts.exchange == nullptr) return record;
  if (const Result<void> put = parts.exchange->put(record->digest); !put.ok())
    log_warning("a new layer is not in the shared store", {{"layer", record->digest}, {"error", put.error().message()}});
  return record;
}

// The server builds by itself: the answer is an operation at once.
asio::awaitable<void> build(ApiServer& server, std::string project, ImportRequest request, std::shared_ptr<Operation> operation) {
  image::ImportOptions options = request.options;
  options.cancelled = &operation->cancelled;
  options.on_progress = [&server, operation](const image::ImportProgress& progress) {
    asio::post(server.parts.io, [&server, operation, progress] {
      operation->progress = {progress.stage, progress.done_bytes, progress.total_bytes};
      server.operations.touch(*operation);
    });
  };
  Result<model::LayerRecord> record = co_await net::on_pool(
      server.parts.imports, [&server, request, options] { return run_import(server.parts, request, options, -1); });
  if (server.stopping) co_return;
  if (!record.ok()) {
    log_warning("an import failed", {{"name", request.name.text()}, {"error", record.error().message()}});
    co_await server.operations.finish(operation, std::move(record).error());
    co_return;
  }
  Result<json::value> named = co_await name_layer(server, std::move(project), request.name, std::move(record).value());
  co_await server.operations.finish(operation, std::move(named));
}

struct Pipe {
  sys::Fd read;
  sys::Fd write;
};

Result<Pipe> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return errno_error("make a pipe", errno);
  Pipe out{sys::Fd(fds[0]), sys::Fd(fds[1])};
  if (::fcntl(fds[1], F_SETFL, O_NONBLOCK) != 0) return errno_error("make a pipe", errno);
  ::fcntl(fds[1], F_SETPIPE_SZ, 1 << 20);
  return out;
}

// The body into the pipe, at the importer's pace. An importer that has seen enough
// closes its end: what is left of the body is then nobody's business.
asio::awaitable<Result<void>> pump(ApiServer& server, net::Exchange& exchange, sys::Fd write_end) {
  asio::posix::stream_descriptor sink(server.parts.io, write_end.release());
  std::vector<char> buffer(256 << 10);
  for (;;) {
    DSEC_CO_ASSIGN(const std::size_t n, co_await exchange.read_some(buffer));
    if (n == 0) co_return Result<void>();
    boost::system::error_code failed;
    std::size_t done = 0;
    while (done < n && !failed)
      done += co_await sink.async_write_some(asio::buffer(buffer.data() + done, n - done), asio::redirect_error(asio::use_awaitable, failed));
    if (failed) co_return Result<void>();
  }
}

asio::awaitable<Result<void>> import(ApiServer& server, Call& call, bool image) {
  DSEC_CO_ASSIGN(ImportRequest request, parse_request(call, image));
  if (request.form == Form::kDebian) {
    DSEC_CO_ASSIGN(auto operation, co_await start_operation(server, call, "import"));
    asio::co_spawn(server.parts.io, build(server, call.principal.project, std::move(request), operation), asio::detached);
    co_return co_await respond_json(call.exchange, 202, {{"operation_id", operation->id}, {"operation", to_json(*operation)}});
  }

  DSEC_CO_ASSIGN(Pipe pipe, make_pipe());
  auto cancelled = std::make_shared<std::atomic<bool>>(false);
  image::ImportOptions options = request.options;
  options.cancelled = cancelled.get();
  // The job owns its end of the pipe and the flag: it may outlast this request.
  auto input = std::make_shared<sys::Fd>(std::move(pipe.read));
  std::optional<Result<model::LayerRecord>> outcome;
  asio::steady_timer done(server.parts.io, asio::steady_timer::time_point::max());
  auto run = [&server, request, options, input, cancelled]() -> Result<model::LayerRecord> {
    Result<model::LayerRecord> record = run_import(server.parts, request, options, input->get());
    input->reset();
    return record;
  };
  asio::co_spawn(
      server.parts.io,
      [](ApiServer& s, decltype(run) job, std::optional<Result<model::LayerRecord>>& slot, asio::steady_timer& signal) -> asio::awaitable<void> {
        slot = co_await net::on_pool(s.parts.imports, std::move(job));
        signal.cancel();
      }(server, std::move(run), outcome, done),
      asio::detached);

  const Result<void> pumped = co_await pump(server, call.exchange, std::move(pipe.write));
  // A body that broke off must never become a layer, even where the archive looks whole.
  if (!pumped.ok()) cancelled->store(true);
  boost::system::error_code woken;
  while (!outcome) co_await done.async_wait(asio::redirect_error(asio::use_awaitable, woken));
  if (!pumped.ok()) co_return pumped;
  if (!outcome->ok()) co_return std::move(*outcome).error();
  DSEC_CO_ASSIGN(const json::value layer, co_await name_layer(server, call.principal.project, request.name, std::move(*outcome).value()));
  co_return co_await respond_json(call.exchange, 201, layer);
}

}  // namespace

asio::awaitable<Result<json::value>> name_layer(ApiServer& server, std::string project, model::RefName name, model::LayerRecord record) {
  store::Ref ref{std::move(project), ref_kind(record.kind), name.name, name.tag, {record.digest}, 0};
  DSEC_CO_TRY(co_await server.parts.catalogue.put_ref(ref));
  DSEC_CO_ASSIGN(json::object described, describe_ref(server, ref));
  co_return json::value(std::move(described));
}

asio::awaitable<Result<std::shared_ptr<Operation>>> start_operation(ApiServer& server, const Call& call, std::string kind) {
  const std::string id = "op-" + to_base32(server.parts.random.bytes(15));
  const std::int64_t now = std::chrono::duration_cast<std::chrono::milliseconds>(server.parts.clock.wall_now().time_since_epoch()).count();
  co_return co_await server.operations.start(id, call.principal.project, std::move(kind), now);
}

asio::awaitable<Result<void>> import_image(ApiServer& server, Call& call) { return import(server, call, true); }
asio::awaitable<Result<void>> import_layer(ApiServer& server, Call& call) { return import(server, call, false); }

}  // namespace dsec::apiserver
