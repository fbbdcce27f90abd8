#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>

#include "apiserver/handlers/handlers.h"
#include "model/json.h"
#include "model/strict_object.h"

namespace dsec::apiserver {
namespace json = boost::json;
namespace {

constexpr std::size_t kMaxBody = 1 << 20;
constexpr std::int64_t kDefaultWaitMs = 30'000;
constexpr std::int64_t kLongestWaitMs = 300'000;

// One place of the request and the layers that it asks for, lowest first.
struct WantedLayers {
  model::LayerKind kind;
  std::string text;   // a ref or a digest
  std::string field;  // of the request
  std::vector<std::string> digests;
};

Result<std::vector<std::string>> digests_of(const ApiServer& server, const model::Principal& who, store::RefKind kind, const std::string& text) {
  if (model::is_digest(text)) {
    if (!server.parts.catalogue.may_read(who, text)) return Error(ErrorCode::kNotFound, "no layer " + text);
    return std::vector<std::string>{text};
  }
  DSEC_ASSIGN(store::Ref ref, server.parts.catalogue.find_ref(who, kind, text));
  return std::move(ref.layers);
}

// Base, workspace, toolkits and diffs, in this order.
Result<std::vector<WantedLayers>> wanted_layers(const ApiServer& server, const model::Principal& who, const model::SandboxSpec& spec) {
  const auto& environment = spec.environment;
  if (!spec.image.empty() && !environment.base.empty()) return invalid_argument("image and environment.base exclude one another");
  const std::string& base = spec.image.empty() ? environment.base : spec.image;
  if (base.empty()) return invalid_argument("image or environment.base is missing");

  std::vector<WantedLayers> out;
  const auto append = [&](model::LayerKind wanted, const std::string& text, const char* field) -> Result<void> {
    DSEC_ASSIGN(std::vector<std::string> digests, digests_of(server, who, store::ref_kind(wanted), text).within(field));
    out.push_back({wanted, text, field, std::move(digests)});
    return {};
  };
  DSEC_TRY(append(model::LayerKind::kBase, base, spec.image.empty() ? "environment.base" : "image"));
  if (!environment.workspace.empty())
    DSEC_TRY(append(model::LayerKind::kWorkspace, environment.workspace, "environment.workspace"));
  for (const std::string& toolkit : environment.toolkits)
    DSEC_TRY(append(model::LayerKind::kToolkit, toolkit, "environment.toolkits"));
  for (const std::string& diff : environment.diffs) DSEC_TRY(append(model::LayerKind::kDiff, diff, "environment.diffs"));
  return out;
}

Result<model::ResolvedLayers> records_of(const ApiServer& server, const std::vector<WantedLayers>& wanted) {
  model::ResolvedLayers out;
  for (const WantedLayers& place : wanted) {
    for (const std::string& digest : place.digests) {
      DSEC_ASSIGN(model::LayerRecord layer, server.parts.layers.find(digest).within(place.field));
      if (layer.kind != place.kind) return invalid_argument(place.field + ": " + place.text + " is a " + std::string(model::to_string(layer.kind)) + " layer");
      out.layers.push_back(std::move(layer));
    }
    if (place.kind == model::LayerKind::kBase) out.config = out.layers.back().config;
  }
  return out;
}

// A checkpoint's layers were resolved when it was made; its project may use them for as long as it is there.
asio::awaitable<Result<model::ResolvedLayers>> resolve_checkpoint(ApiServer& server, store::Checkpoint checkpoint) {
  DSEC_CO_TRY((co_await take_missing(server, checkpoint.layers)).within("snapshot"));
  model::ResolvedLayers out;
  for (const std::string& digest : checkpoint.layers) {
    DSEC_CO_ASSIGN(model::LayerRecord layer, server.parts.layers.find(digest).within("snapshot"));
    if (layer.kind == model::LayerKind::kBase) out.config = layer.config;
    out.layers.push_back(std::move(layer));
  }
  co_return out;
}

asio::awaitable<Result<model::ResolvedLayers>> resolve(ApiServer& server, model::Principal who, model::SandboxSpec spec) {
  if (!spec.snapshot.empty()) {
    DSEC_CO_ASSIGN(store::Checkpoint checkpoint, server.parts.catalogue.find_checkpoint(who.project, spec.snapshot).within("snapshot"));
    co_return co_await resolve_checkpoint(server, std::move(checkpoint));
  }
  DSEC_CO_ASSIGN(const std::vector<WantedLayers> wanted, wanted_layers(server, who, spec));
  for (const WantedLayers& place : wanted) DSEC_CO_TRY((co_await take_missing(server, place.digests)).within(place.field));
  co_return records_of(server, wanted);
}

// Of all layers, and as the request has it: a node runs one.
Result<std::string> architecture_of(const model::SandboxSpec& spec, const model::ResolvedLayers& layers) {
  std::string out = spec.architecture;
  for (const model::LayerRecord& layer : layers.layers) {
    if (out.empty()) out = layer.architecture;
    if (layer.architecture != out) return Error(ErrorCode::kUnsupported, "architecture: layer " + layer.digest + " is for " + layer.architecture + ", not for " + out);
  }
  return out;
}

// A packed layer says which ones it was made over. Over others, a directory that it
// replaces hides whatever they have there, and nobody would notice.
json::array warnings_of(const model::ResolvedLayers& made_of) {
  json::array out;
  std::vector<std::string> below;
  for (const model::LayerRecord& layer : made_of.layers) {
    if (layer.provenance && layer.provenance->parents != below)
      out.push_back(json::string("layer " + layer.digest + " was packed over other layers than those below it here: what it replaces hides what they hold"));
    below.push_back(layer.digest);
  }
  return out;
}

Result<std::int64_t> wait_of(const json::object& body) {
  const json::value* wait = body.if_contains("wait_ms");
  if (wait == nullptr) return kDefaultWaitMs;
  boost::system::error_code failed;
  const std::int64_t ms = wait->to_number<std::int64_t>(failed);
  if (failed || ms < 0 || ms > kLongestWaitMs) return invalid_argument("wait_ms: a number from 0 to 300000");
  return ms;
}

// What a request does not say of its resources is as it was where the snapshot was taken.
Result<void> inherit_resources(const ApiServer& server, const model::Principal& who, const json::object& body, model::SandboxSpec& spec) {
  if (spec.snapshot.empty()) return {};
  DSEC_ASSIGN(const store::Checkpoint checkpoint, server.parts.catalogue.find_checkpoint(who.project, spec.snapshot).within("snapshot"));
  spec.resources = checkpoint.resources;
  const json::value* asked = body.if_contains("resources");
  return asked != nullptr ? model::merge_json(*asked, "resources", spec.resources) : Result<void>();
}

}  // namespace

Result<std::string> idempotency_key_of(const Call& call) {
  const std::string* key = call.request().header("Idempotency-Key");
  if (key == nullptr) return std::string();
  if (key->empty() || key->size() > 128) return invalid_argument("Idempotency-Key: 1 to 128 bytes");
  return *key;
}

asio::awaitable<Result<Made>> make_sandbox(ApiServer& server, CreateCommand command) {
  if (server.stopping) co_return Error(ErrorCode::kUnavailable, "the server is stopping");
  DSEC_CO_TRY(model::validate(command.spec));
  DSEC_CO_ASSIGN(command.layers, co_await resolve(server, command.principal, command.spec));
  for (const std::string& service : command.spec.network.services) {
    const auto known = server.parts.catalogue.services();
    if (std::none_of(known.begin(), known.end(), [&](const auto& s) { return s.name == service; }))
      co_return invalid_argument("network.services: no service " + service + "; the operator defines them (dsec service detect)");
  }
  Made out;
  out.warnings = warnings_of(command.layers);
  placement::Demand demand{.backend = command.spec.backend, .memory_mb = static_cast<std::uint64_t>(command.spec.resources.memory_mb), .architecture = ""};
  DSEC_CO_ASSIGN(demand.architecture, architecture_of(command.spec, command.layers));
  DSEC_CO_TRY(placement::place({server.parts.edge.load()}, demand, server.parts.random));  // one edge: what it answers is which
  DSEC_CO_ASSIGN(out.sandbox, co_await server.parts.edge.create(std::move(command)));
  co_return out;
}

asio::awaitable<Result<void>> create_sandbox(ApiServer& server, Call& call) {
  if (server.stopping) co_return Error(ErrorCode::kUnavailable, "the server is stopping");
  DSEC_CO_TRY(check_parameters(call.request(), {}));
  DSEC_CO_ASSIGN(const std::string body, co_await call.exchange.read_body(kMaxBody));
  DSEC_CO_ASSIGN(const json::value value, model::parse_json(body));
  if (!value.is_object()) co_return invalid_argument("the body is not a JSON object");
  CreateCommand command;
  command.principal = call.principal;
  DSEC_CO_ASSIGN(command.spec, model::spec_from_json(value, {"wait_ms"}));
  DSEC_CO_TRY(inherit_resources(server, call.principal, value.get_object(), command.spec));
  DSEC_CO_ASSIGN(const std::int64_t wait_ms, wait_of(value.get_object()));
  command.wait = std::chrono::milliseconds(wait_ms);
  DSEC_CO_ASSIGN(command.idempotency_key, idempotency_key_of(call));
  DSEC_CO_ASSIGN(Made made, co_await make_sandbox(server, std::move(command)));
  const model::SandboxState state = made.sandbox.state;
  const bool waiting = state == model::SandboxState::kQueued || state == model::SandboxState::kPlacing || state == model::SandboxState::kStarting;
  json::value answer = model::to_json(made.sandbox);
  if (!made.warnings.empty()) answer.get_object()["warnings"] = std::move(made.warnings);
  co_return co_await respond_json(call.exchange, waiting ? 202 : 201, answer);
}

asio::awaitable<Result<void>> list_sandboxes(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {"selector", "state", "limit", "cursor"}));
  ListQuery query;
  if (const std::string* selector = call.request().parameter("selector")) query.selector = *selector;
  if (const std::string* state = call.request().parameter("state")) query.state = *state;
  if (const std::string* cursor = call.request().parameter("cursor")) query.cursor = *cursor;
  if (const std::string* limit = call.request().parameter("limit")) {
    const auto [end, error] = std::from_chars(limit->data(), limit->data() + limit->size(), query.limit);
    if (error != std::errc() || end != limit->data() + limit->size() || query.limit < 1 || query.limit > 1000)
      co_return invalid_argument("limit: a number from 1 to 1000");
  }
  DSEC_CO_ASSIGN(const EdgeGateway::Page page, co_await server.parts.edge.list(call.principal, query));
  json::array items;
  for (const model::Sandbox& sandbox : page.items) items.push_back(model::to_json(sandbox));
  co_return co_await respond_json(call.exchange, 200, {{"items", std::move(items)}, {"next_cursor", page.next_cursor}});
}

asio::awaitable<Result<void>> serve_sandbox(ApiServer& server, Call& call) {
  const std::vector<std::string>& segments = call.request().segments;
  const bool reads = call.request().method == "GET" || call.request().method == "HEAD";
  // A viewer looks and changes nothing; an interactive stream, a port and a command are no looking.
  const bool acts = !reads || (segments.size() > 3 && (segments[3] == "ports" || (segments.size() > 4 && segments[3] == "exec" && segments[4] == "stream")));
  if (acts && call.principal.role == model::Role::kViewer) co_return Error(ErrorCode::kPermissionDenied, "this key may only look");
  co_await server.parts.edge.serve(call.exchange, call.principal, call.path.at("ref"), {segments.begin() + 3, segments.end()});
  co_return Result<void>();
}

}  // namespace dsec::apiserver
