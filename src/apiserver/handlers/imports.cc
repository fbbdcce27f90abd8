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
#include <set>

#include "apiserver/handlers/handlers.h"
#include "base/encoding.h"
#include "base/log.h"
#include "model/json.h"
#include "model/strict_object.h"
#include "net/blocking.h"

namespace dsec::apiserver {
namespace json = boost::json;
namespace {

enum class Form { kTar, kOci, kDebian, kRegistry };
constexpr std::size_t kMaxAuthfile = 64 << 10;

struct ImportRequest {
  model::RefName name;
  model::LayerKind kind = model::LayerKind::kBase;
  Form form = Form::kTar;
  std::string suite;                  // kDebian
  std::vector<std::string> packages;  // kDebian
  image::RegistryReference reference; // kRegistry
  std::string authfile;               // kRegistry: a secret, for this one operation
  image::ImportOptions options;
};

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

Result<std::string> architecture_of(const std::string& text) {
  if (text.size() > 32 || text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") != std::string::npos) return invalid_argument("architecture: as OCI calls it: amd64");
  return text;
}

Result<ImportRequest> parse_request(const Call& call, bool image) {
  const net::HttpRequest& request = call.request();
  DSEC_TRY(check_parameters(request, {"name", "kind", "at", "format", "profile", "architecture", "source", "label"}));
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
    if (out.kind == model::LayerKind::kDiff) return invalid_argument("kind: a diff is packed from a sandbox, not imported");
  } else if (!image) {
    return invalid_argument("kind: base, workspace, toolkit or verifier");
  }
  out.options.kind = out.kind;
  out.options.at = text("at");
  if (!out.options.at.empty() && out.options.at[0] != '/') return invalid_argument("at: an absolute path inside the sandbox");
  out.options.source_label = text("label");
  if (const std::string profile = text("profile"); !profile.empty()) {
    DSEC_ASSIGN(out.options.profile, image::parse_profile(profile));
  }
  DSEC_ASSIGN(out.options.architecture, architecture_of(text("architecture")));
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
      DSEC_ASSIGN(out.reference, image::parse_registry_reference(std::string_view(source).substr(sizeof "docker://" - 1)));
      out.form = Form::kRegistry;
      out.options.source_label = source;
    } else {
      return invalid_argument("source: debian:SUITE[,package...] or docker://REFERENCE");
    }
  }
  if (!out.options.architecture.empty() && out.form != Form::kOci && out.form != Form::kRegistry) return invalid_argument("architecture: chooses among the images of an archive or registry");
  return out;
}

// What an import made, and what of it was known; an archive without layers has none.
using image::ImportedImage;

Result<ImportedImage> of_record(Result<model::LayerRecord> record) {
  if (!record.ok()) return std::move(record).error();
  return ImportedImage{.record = std::move(record).value()};
}

Result<ImportedImage> import_by(image::Importer& importer, const ImportRequest& request, const image::ImportOptions& options, int input) {
  switch (request.form) {
    case Form::kTar:
      return of_record(importer.import_tar(input, options));
    case Form::kOci:
      return importer.import_oci(input, options);
    case Form::kDebian:
      return of_record(importer.import_debian(request.suite, request.packages, options));
    case Form::kRegistry:
      return importer.pull(request.reference, request.authfile, options);
  }
  return Error(ErrorCode::kInternal, "an import of no form");
}

}  // namespace

// A digest is a name, not a right: what is known of images that the project may read
// need not be proven again, all else has to come in whole.
std::set<std::string> reusable_parts(const ApiServer& server, const model::Principal& who) {
  std::set<std::string> out;
  for (const store::Ref& ref : server.parts.catalogue.refs(who)) {
    for (const std::string& digest : ref.layers) {
      const Result<model::LayerRecord> record = server.parts.layers.find(digest);
      if (record.ok()) out.insert(record->parts.begin(), record->parts.end());
    }
  }
  return out;
}

namespace {

asio::awaitable<Result<json::value>> name_imported(ApiServer& server, std::string project, model::RefName name, ImportedImage imported) {
  DSEC_CO_ASSIGN(json::value described, co_await name_layer(server, std::move(project), std::move(name), std::move(imported.record)));
  if (imported.layers != 0) {
    json::object& out = described.get_object();
    out["image_layers"] = imported.layers;
    out["reused_layers"] = imported.reused_layers;
    out["reused_bytes"] = imported.reused_bytes;
  }
  co_return described;
}

// On a worker thread.
Result<ImportedImage> run_import(const ServerParts& parts, const ImportRequest& request, const image::ImportOptions& options, int input) {
  Result<ImportedImage> imported = import_by(parts.importer, request, options, input);
  if (imported.ok()) put_into_store(parts, imported->record.digest);
  return imported;
}

// The server builds by itself: the answer is an operation at once.
asio::awaitable<void> build(ApiServer& server, std::string project, ImportRequest request, std::shared_ptr<Operation> operation) {
  image::ImportOptions options = request.options;
  options.cancelled = &operation->cancelled;
  options.on_progress = progress_of(server, operation);
  Result<ImportedImage> imported = co_await net::on_pool(
      server.parts.imports, [&server, request, options] { return run_import(server.parts, request, options, -1); });
  if (server.stopping) co_return;
  if (!imported.ok()) {
    log_warning("an import failed", {{"name", request.name.text()}, {"error", imported.error().message()}});
    co_await server.operations.finish(operation, std::move(imported).error());
    co_return;
  }
  Result<json::value> named = co_await name_imported(server, std::move(project), request.name, std::move(imported).value());
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

// Its words are for skopeo; what is wrong with them is nothing to print.
Result<void> check_authfile(const std::string& text) {
  const Result<json::value> value = model::parse_json(text);
  const bool right = value.ok() && value->is_object() && value->get_object().size() == 1 && value->get_object().if_contains("auths") != nullptr && value->at("auths").is_object();
  return right ? Result<void>() : invalid_argument("the body is no authfile: a JSON object with auths alone");
}

asio::awaitable<Result<void>> import(ApiServer& server, Call& call, bool image) {
  DSEC_CO_ASSIGN(ImportRequest request, parse_request(call, image));
  if (request.form == Form::kOci || request.form == Form::kRegistry) request.options.reusable_parts = reusable_parts(server, call.principal);
  if (request.form == Form::kRegistry) {
    DSEC_CO_ASSIGN(request.authfile, co_await call.exchange.read_body(kMaxAuthfile));
    if (!request.authfile.empty()) DSEC_CO_TRY(check_authfile(request.authfile));
  }
  if (request.form == Form::kDebian || request.form == Form::kRegistry) {
    DSEC_CO_ASSIGN(auto operation, co_await start_operation(server, call, "import"));
    asio::co_spawn(server.parts.io, build(server, call.principal.project, std::move(request), operation), asio::detached);
    co_return co_await respond_json(call.exchange, 202, {{"operation_id", operation->id}, {"operation", to_json(*operation)}});
  }

  const image::ImportOptions options = request.options;
  auto work = [&server, request, options](int input, const std::atomic<bool>& cancelled) -> Result<ImportedImage> {
    image::ImportOptions mine = options;
    mine.cancelled = &cancelled;
    return run_import(server.parts, request, mine, input);
  };
  DSEC_CO_ASSIGN(ImportedImage imported, co_await import_body(server, call.exchange, std::move(work)));
  DSEC_CO_ASSIGN(const json::value layer, co_await name_imported(server, call.principal.project, request.name, std::move(imported)));
  co_return co_await respond_json(call.exchange, 201, layer);
}

}  // namespace

asio::awaitable<Result<ImportedImage>> import_body(ApiServer& server, net::Exchange& exchange, BodyImport work) {
  DSEC_CO_ASSIGN(Pipe pipe, make_pipe());
  auto cancelled = std::make_shared<std::atomic<bool>>(false);
  // The job owns its end of the pipe and the flag: it may outlast this request.
  auto input = std::make_shared<sys::Fd>(std::move(pipe.read));
  std::optional<Result<ImportedImage>> outcome;
  asio::steady_timer done(server.parts.io, asio::steady_timer::time_point::max());
  auto run = [work = std::move(work), input, cancelled]() -> Result<ImportedImage> {
    Result<ImportedImage> imported = work(input->get(), *cancelled);
    input->reset();
    return imported;
  };
  asio::co_spawn(
      server.parts.io,
      [](ApiServer& s, decltype(run) job, std::optional<Result<ImportedImage>>& slot, asio::steady_timer& signal) -> asio::awaitable<void> {
        slot = co_await net::on_pool(s.parts.imports, std::move(job));
        signal.cancel();
      }(server, std::move(run), outcome, done),
      asio::detached);

  const Result<void> pumped = co_await pump(server, exchange, std::move(pipe.write));
  // A body that broke off must never become a layer, even where the archive looks whole.
  if (!pumped.ok()) cancelled->store(true);
  boost::system::error_code woken;
  while (!outcome) co_await done.async_wait(asio::redirect_error(asio::use_awaitable, woken));
  if (!pumped.ok()) co_return pumped.error();
  co_return std::move(*outcome);
}

asio::awaitable<Result<json::value>> name_layer(ApiServer& server, std::string project, model::RefName name, model::LayerRecord record) {
  store::Ref ref{std::move(project), store::ref_kind(record.kind), name.name, name.tag, {record.digest}, 0};
  DSEC_CO_TRY(co_await server.parts.catalogue.put_ref(ref));
  DSEC_CO_ASSIGN(json::object described, describe_ref(server, ref));
  co_return json::value(std::move(described));
}

void put_into_store(const ServerParts& parts, const std::string& digest) {
  if (parts.exchange == nullptr) return;
  if (const Result<void> put = parts.exchange->put(digest); !put.ok())
    log_warning("a new layer is not in the shared store", {{"layer", digest}, {"error", put.error().message()}});
}

std::function<void(const image::ImportProgress&)> progress_of(ApiServer& server, std::shared_ptr<Operation> operation) {
  return [&server, operation = std::move(operation)](const image::ImportProgress& progress) {
    asio::post(server.parts.io, [&server, operation, progress] {
      operation->progress = {progress.stage, progress.done_bytes, progress.total_bytes, progress.layer, progress.layers};
      server.operations.touch(*operation);
    });
  };
}

asio::awaitable<Result<std::shared_ptr<Operation>>> start_operation(ApiServer& server, const Call& call, std::string kind) {
  const std::string id = "op-" + to_base32(server.parts.random.bytes(15));
  const std::int64_t now = std::chrono::duration_cast<std::chrono::milliseconds>(server.parts.clock.wall_now().time_since_epoch()).count();
  co_return co_await server.operations.start(id, call.principal.project, std::move(kind), now);
}

asio::awaitable<Result<void>> import_image(ApiServer& server, Call& call) { return import(server, call, true); }
asio::awaitable<Result<void>> import_layer(ApiServer& server, Call& call) { return import(server, call, false); }

}  // namespace dsec::apiserver
