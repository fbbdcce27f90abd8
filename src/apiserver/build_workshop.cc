#include "apiserver/build_workshop.h"

#include "apiserver/handlers/handlers.h"
#include "base/log.h"
#include "image/registry_reference.h"
#include "net/blocking.h"

namespace dsec::apiserver {

asio::awaitable<Result<model::LayerRecord>> BuildWorkshop::find_image(std::string reference) {
  const Catalogue& catalogue = server_.parts.catalogue;
  std::string digest;
  if (model::is_digest(reference)) {
    if (!catalogue.may_read(options_.who, reference)) co_return Error(ErrorCode::kNotFound, "no image " + reference);
    digest = reference;
  } else if (const Result<store::Ref> ref = catalogue.find_ref(options_.who, store::RefKind::kImage, reference); ref.ok()) {
    digest = ref->layers.front();
  } else {
    co_return co_await pull(std::move(reference));
  }
  DSEC_CO_TRY(co_await take_missing(server_, {digest}));
  DSEC_CO_ASSIGN(model::LayerRecord record, server_.parts.layers.find(digest));
  if (record.kind != model::LayerKind::kBase) co_return invalid_argument(reference + " is a " + std::string(model::to_string(record.kind)) + " layer, not an image");
  co_return record;
}

asio::awaitable<Result<model::LayerRecord>> BuildWorkshop::pull(std::string reference) {
  const Error unknown(ErrorCode::kNotFound, "no image is called " + reference.substr(0, 200) + " here: import it, or let the server pull from its registry (--allow-registry)");
  const Result<image::RegistryReference> wanted = image::parse_registry_reference(reference);
  if (!wanted.ok()) co_return unknown;
  image::ImportOptions options;
  options.source_label = "docker://" + wanted->text();
  options.reusable_parts = reusable_parts(server_, options_.who);
  options.cancelled = &operation_->cancelled;
  Result<image::ImportedImage> pulled =
      co_await net::on_pool(server_.parts.imports, [&server = server_, reference = *wanted, options, operation = operation_] { return server.parts.importer.pull(reference, "", options); });
  if (!pulled.ok() && pulled.error().code() == ErrorCode::kPermissionDenied) co_return unknown;
  if (!pulled.ok()) co_return std::move(pulled).error();
  // Under the name that the Dockerfile has for it, as a pull by hand would.
  if (const Result<model::RefName> name = model::parse_ref(reference); name.ok()) {
    const auto named = co_await name_layer(server_, options_.who.project, *name, pulled->record);
    if (!named.ok()) co_return named.error();
  }
  co_return pulled->record;
}

asio::awaitable<Result<std::string>> BuildWorkshop::start(model::LayerRecord image, model::ImageConfig config, model::Network network) {
  CreateCommand command;
  command.principal = options_.who;
  command.spec.image = image.digest;
  command.spec.resources = options_.resources;
  command.spec.network = std::move(network);
  command.spec.lifetime.max_seconds = options_.most_seconds + 600;  // to pack it
  command.spec.labels[kBuildLabel] = operation_->id;
  command.wait = std::chrono::seconds(120);
  config.entrypoint.clear();
  config.command.clear();
  placement::Demand demand{.backend = command.spec.backend, .memory_mb = static_cast<std::uint64_t>(command.spec.resources.memory_mb), .architecture = image.architecture};
  command.layers.layers = {std::move(image)};
  command.layers.config = std::move(config);
  DSEC_CO_TRY(model::validate(command.spec));
  DSEC_CO_TRY(placement::place({server_.parts.edge.load()}, demand, server_.parts.random));
  DSEC_CO_ASSIGN(const model::Sandbox sandbox, co_await server_.parts.edge.create(std::move(command)));
  current_ = sandbox.id;
  if (sandbox.state != model::SandboxState::kRunning) {
    co_await end(sandbox.id);
    co_return Error(ErrorCode::kUnavailable, "the step's sandbox did not start" + (sandbox.end_detail.empty() ? std::string() : ": " + sandbox.end_detail));
  }
  co_return sandbox.id;
}

asio::awaitable<Result<void>> BuildWorkshop::write_file(std::string sandbox, build::FileOrder order) {
  co_return co_await server_.parts.edge.write_file({.principal = options_.who,
                                                    .sandbox = std::move(sandbox),
                                                    .path = std::move(order.path),
                                                    .bytes = std::move(order.bytes),
                                                    .user = std::to_string(order.uid),
                                                    .mode = order.mode});
}

asio::awaitable<Result<build::RunEnd>> BuildWorkshop::run(std::string sandbox, build::RunOrder order) {
  CommandOrder command{.principal = options_.who, .sandbox = std::move(sandbox), .argv = std::move(order.argv), .env = std::move(order.env), .on_output = std::move(order.on_output)};
  command.timeout_ms = options_.most_seconds * 1000;
  DSEC_CO_ASSIGN(CommandEnd end, co_await server_.parts.edge.run_command(std::move(command)));
  co_return build::RunEnd{.exit_code = end.exit_code, .why = std::move(end.why), .infra = end.infra};
}

asio::awaitable<Result<model::LayerRecord>> BuildWorkshop::pack(std::string sandbox, image::PackOptions options) {
  co_return co_await server_.parts.edge.pack({options_.who, std::move(sandbox), std::move(options), std::shared_ptr<std::atomic<bool>>(operation_, &operation_->cancelled)});
}

asio::awaitable<void> BuildWorkshop::end(std::string sandbox) {
  if (current_ == sandbox) current_.clear();
  const Result<model::Sandbox> ended = co_await server_.parts.edge.end(options_.who, sandbox);
  if (!ended.ok() && ended.error().code() != ErrorCode::kNotFound) log_warning("a build's sandbox was not ended", {{"sandbox", sandbox}, {"why", ended.error().message()}});
}

asio::awaitable<void> BuildWorkshop::end_current() {
  if (!current_.empty()) co_await end(current_);
}

}  // namespace dsec::apiserver
