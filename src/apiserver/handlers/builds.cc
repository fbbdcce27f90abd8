// Builds: a context comes first, then the call that names it; an operation builds.
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "apiserver/build_workshop.h"
#include "apiserver/handlers/handlers.h"
#include "base/encoding.h"
#include "base/log.h"
#include "build/engine.h"
#include "erofs/digest.h"
#include "model/json.h"
#include "model/strict_object.h"
#include "net/blocking.h"

namespace dsec::apiserver {
namespace json = boost::json;
namespace {

constexpr std::size_t kBodyLimit = 8 << 20;
constexpr std::size_t kMaxSecret = 64 << 10;
constexpr std::size_t kMaxSecrets = 32;
constexpr std::int64_t kLongestCommand = 24 * 3600;
constexpr auto kContextLife = std::chrono::hours(1);

struct BuildCall {
  model::RefName name;
  build::BuildOrder order;
  BuildWorkshop::Options workshop;
};

std::string sha256_of(std::string_view text) {
  erofs::Sha256 hash;
  hash.update(text);
  return "sha256:" + hash.hex();
}

Result<void> read_secrets(const std::map<std::string, std::string>& encoded, std::map<std::string, std::string>& out) {
  if (encoded.size() > kMaxSecrets) return Error(ErrorCode::kTooLarge, "secrets: more than 32");
  for (const auto& [id, text] : encoded) {
    DSEC_ASSIGN(std::string secret, from_base64(text).within("secrets." + id));
    if (secret.size() > kMaxSecret) return Error(ErrorCode::kTooLarge, "secrets." + id + ": more than 64 KiB");
    out[id] = std::move(secret);
  }
  return {};
}

Result<BuildCall> parse_build(const json::value& body, std::string& context) {
  BuildCall out;
  std::string name;
  std::string dockerfile;
  bool no_cache = false;
  std::map<std::string, std::string> secrets;
  build::BuildOrder& order = out.order;
  model::StrictObject fields(body, "");
  fields.read("name", name);
  fields.read("dockerfile", dockerfile);
  fields.read("context", context);
  fields.read("args", order.args);
  fields.read("target", order.target);
  fields.read("secrets", secrets);
  fields.read("no_cache", no_cache);
  fields.read("services", order.services);
  fields.read_enum("profile", order.profile, &image::parse_profile);
  fields.read("timeout_seconds", out.workshop.most_seconds);
  if (const json::value* resources = fields.take("resources")) {
    if (Result<void> merged = model::merge_json(*resources, "resources", out.workshop.resources); !merged.ok()) fields.fail(std::move(merged).error());
  }
  DSEC_TRY(fields.finish());
  if (name.empty()) return invalid_argument("name: what the image is to be called is missing");
  DSEC_ASSIGN(out.name, model::parse_ref(name).within("name"));
  if (out.workshop.most_seconds < 1 || out.workshop.most_seconds > kLongestCommand) return invalid_argument("timeout_seconds: a number from 1 to 86400");
  DSEC_TRY(read_secrets(secrets, order.secrets));
  DSEC_ASSIGN(order.plan, build::parse_dockerfile(dockerfile).within("dockerfile"));
  order.dockerfile_digest = sha256_of(dockerfile);
  order.use_cache = !no_cache;
  order.label = "built as " + out.name.text();
  return out;
}

// Which services, and what they mean now: a part that was made with others is another one.
Result<std::string> network_fingerprint(const ApiServer& server, const std::vector<std::string>& names) {
  if (names.empty()) return std::string();
  const std::vector<model::ServiceDefinition> known = server.parts.catalogue.services();
  std::string text;
  for (const std::string& name : names) {
    const auto found = std::find_if(known.begin(), known.end(), [&](const model::ServiceDefinition& one) { return one.name == name; });
    if (found == known.end()) return invalid_argument("services: no service " + name.substr(0, 64) + "; the operator defines them (dsec service detect)");
    text += json::serialize(model::to_json(*found)) + "\n";
  }
  return sha256_of(text);
}

json::array steps_json(const std::vector<build::StepView>& steps) {
  json::array out;
  for (const build::StepView& step : steps) {
    json::object item{{"line", step.line}, {"stage", step.stage}, {"text", step.text}, {"state", std::string(build::to_string(step.state))}};
    if (step.duration_ms != 0) item["duration_ms"] = step.duration_ms;
    if (!step.sandbox.empty()) item["sandbox"] = step.sandbox;
    if (step.exit_code != 0) item["exit_code"] = step.exit_code;
    out.push_back(std::move(item));
  }
  return out;
}

build::BuildWatch watch_for(ApiServer& server, const std::shared_ptr<Operation>& operation) {
  build::BuildWatch watch;
  watch.on_steps = [&server, operation](const std::vector<build::StepView>& steps) {
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < steps.size(); i++) {
      if (steps[i].state != build::StepView::State::kWaiting) at = i + 1;
    }
    operation->build["steps"] = steps_json(steps);
    operation->progress = {.stage = "build", .done_bytes = 0, .total_bytes = 0, .layer = at, .layers = steps.size()};
    server.operations.touch(*operation);
  };
  watch.on_output = [&server, operation](std::size_t step, std::string_view bytes) {
    operation->output.add(step, bytes);
    server.operations.touch(*operation);
  };
  return watch;
}

// Whoever cancels a build, or stops the server, ends the command that it waits for.
asio::awaitable<void> watch_cancel(ApiServer& server, std::shared_ptr<Operation> operation, std::shared_ptr<BuildWorkshop> workshop) {
  while (!operation->finished() && !operation->cancelled) co_await server.operations.wait(operation, server.parts.clock.now() + std::chrono::minutes(10));
  if (operation->cancelled) co_await workshop->end_current();
}

asio::awaitable<Result<json::value>> name_built(ApiServer& server, std::string project, model::RefName name, build::BuiltImage built) {
  DSEC_CO_TRY(co_await net::on_pool(server.parts.imports, [&server, digest = built.record.digest]() -> Result<void> {
    put_into_store(server.parts, digest);
    return {};
  }));
  DSEC_CO_ASSIGN(json::value described, co_await name_layer(server, std::move(project), std::move(name), std::move(built.record)));
  described.get_object()["cached_steps"] = built.cached_steps;
  json::array warnings;
  for (const std::string& warning : built.warnings) warnings.emplace_back(warning);
  if (!warnings.empty()) described.get_object()["warnings"] = std::move(warnings);
  co_return described;
}

asio::awaitable<void> sweep_cache(ApiServer& server) {
  const auto swept = co_await net::on_pool(server.parts.pool, [&layers = server.parts.layers, bytes = server.options.build_cache_bytes, age = server.options.build_cache_age] { return layers.sweep_build_parts(bytes, age); });
  if (!swept.ok()) log_warning("the cache of builds was not swept", {{"error", swept.error().message()}});
}

asio::awaitable<void> build_now(ApiServer& server, BuildCall call, std::shared_ptr<Operation> operation) {
  const auto workshop = std::make_shared<BuildWorkshop>(server, operation, call.workshop);
  asio::co_spawn(server.parts.io, watch_cancel(server, operation, workshop), asio::detached);
  const build::EngineParts parts{*workshop, server.parts.importer, server.parts.layers, server.parts.imports, server.parts.clock, server.parts.random};
  const std::string project = call.order.project;
  std::shared_ptr<image::PartHolds> context = call.order.context_holds;
  auto engine = std::make_unique<build::Engine>(parts, std::move(call.order), watch_for(server, operation), std::shared_ptr<std::atomic<bool>>(operation, &operation->cancelled));
  Result<build::BuiltImage> built = co_await engine->run();
  if (server.stopping) co_return;  // the next start says that it was interrupted
  Result<json::value> outcome = json::value();
  if (built.ok()) {
    outcome = co_await name_built(server, project, call.name, std::move(built).value());
  } else {
    outcome = std::move(built).error();
  }
  std::shared_ptr<image::PartHolds> holds = engine->holds();
  engine.reset();
  server.contexts.let_go(std::move(holds));
  server.contexts.let_go(std::move(context));
  co_await server.operations.finish(operation, std::move(outcome));
  co_await sweep_cache(server);
}

asio::awaitable<void> run_build(ApiServer& server, BuildCall call, std::shared_ptr<Operation> operation) {
  server.builds++;
  co_await build_now(server, std::move(call), std::move(operation));
  server.builds--;
  server.a_build_is_over.cancel();
}

}  // namespace

asio::awaitable<Result<void>> upload_context(ApiServer& server, Call& call) {
  if (server.stopping) co_return Error(ErrorCode::kUnavailable, "the server is stopping");
  DSEC_CO_TRY(check_parameters(call.request(), {}));
  DSEC_CO_TRY(server.contexts.make_room(call.principal.project, server.parts.clock.now()));
  const std::string id = "ctx-" + to_base32(server.parts.random.bytes(15));
  auto holds = std::make_shared<image::PartHolds>(server.parts.layers);
  image::ImportOptions options{.kind = model::LayerKind::kWorkspace};
  options.source_label = "build context";
  options.part_id = "context:" + call.principal.project + ":" + id;
  options.part_holds = holds.get();
  BodyImport work = [&server, options, holds](int input, const std::atomic<bool>& cancelled) -> Result<image::ImportedImage> {
    image::ImportOptions mine = options;
    mine.cancelled = &cancelled;
    DSEC_ASSIGN(model::LayerRecord record, server.parts.importer.import_tar(input, mine));
    return image::ImportedImage{.record = std::move(record)};
  };
  DSEC_CO_ASSIGN(const image::ImportedImage imported, co_await import_body(server, call.exchange, std::move(work)));
  server.contexts.add(id, {call.principal.project, imported.record.digest, std::move(holds), server.parts.clock.now() + kContextLife});
  co_return co_await respond_json(call.exchange, 201, {{"context", id}, {"entries", imported.record.entries}, {"content_bytes", imported.record.content_bytes}});
}

asio::awaitable<Result<void>> build_image(ApiServer& server, Call& call) {
  if (server.stopping) co_return Error(ErrorCode::kUnavailable, "the server is stopping");
  DSEC_CO_TRY(check_parameters(call.request(), {}));
  DSEC_CO_ASSIGN(const std::string body, co_await call.exchange.read_body(kBodyLimit));
  DSEC_CO_ASSIGN(const json::value value, model::parse_json(body.empty() ? "{}" : body));
  std::string context;
  DSEC_CO_ASSIGN(BuildCall build, parse_build(value, context));
  build::BuildOrder& order = build.order;
  order.project = call.principal.project;
  order.by = call.principal.key_id;
  build.workshop.who = call.principal;
  DSEC_CO_ASSIGN(order.network_fingerprint, network_fingerprint(server, order.services));
  order.residue = server.options.residue;
  DSEC_CO_ASSIGN(const std::vector<image::ResidueRule> hidden, co_await hidden_rules(server, call.principal));
  order.residue.insert(order.residue.end(), hidden.begin(), hidden.end());
  if (!context.empty()) {
    DSEC_CO_ASSIGN(const BuildContext held, server.contexts.find(order.project, context, server.parts.clock.now()));
    order.context = held.digest;
    order.context_holds = held.holds;
  }
  DSEC_CO_ASSIGN(auto operation, co_await start_operation(server, call, "build"));
  asio::co_spawn(server.parts.io, run_build(server, std::move(build), operation), asio::detached);
  co_return co_await respond_json(call.exchange, 202, {{"operation_id", operation->id}, {"operation", to_json(*operation)}});
}

asio::awaitable<void> ApiServer::builds_over(Instant by) {
  asio::steady_timer limit(parts.io, by);
  limit.async_wait([this](const boost::system::error_code& cancelled) {
    if (!cancelled) a_build_is_over.cancel();
  });
  boost::system::error_code woken;
  while (builds != 0 && parts.clock.now() < by) co_await a_build_is_over.async_wait(asio::redirect_error(asio::use_awaitable, woken));
}

asio::awaitable<void> ApiServer::keep_builds(Duration interval) {
  co_await end_cut_off_builds();
  asio::steady_timer timer(parts.io);
  for (;;) {
    contexts.forget_old(parts.clock.now());
    co_await sweep_cache(*this);
    timer.expires_after(interval);
    boost::system::error_code failed;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, failed));
  }
}

// A sandbox that a build was using when the server died names the build; nobody waits for it.
asio::awaitable<void> ApiServer::end_cut_off_builds() {
  for (const Operations::CutOff& build : operations.cut_off("build")) {
    const model::Principal who{.project = build.project, .key_id = {}, .role = model::Role::kAdmin};
    const Result<EdgeGateway::Page> left = co_await parts.edge.list(who, {.selector = std::string(kBuildLabel) + "=" + build.id, .state = {}, .limit = 1000, .cursor = {}});
    if (!left.ok()) {
      log_warning("what a build left is not known", {{"operation", build.id}, {"error", left.error().message()}});
      continue;
    }
    for (const model::Sandbox& sandbox : left->items) {
      const Result<model::Sandbox> ended = co_await parts.edge.end(who, sandbox.id);
      if (!ended.ok()) log_warning("a build's sandbox was not ended", {{"sandbox", sandbox.id}, {"error", ended.error().message()}});
    }
  }
}

}  // namespace dsec::apiserver
