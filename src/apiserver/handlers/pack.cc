// pack_diff: a sandbox's files become a layer, in quarantine until a builder promotes it.
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <iterator>

#include "apiserver/handlers/handlers.h"
#include "base/log.h"
#include "image/verifier_rules.h"
#include "model/strict_object.h"
#include "net/blocking.h"
#include "net/query.h"

namespace dsec::apiserver {
namespace json = boost::json;
namespace {

constexpr std::size_t kBodyLimit = 4 << 20;
constexpr std::size_t kMaxPatterns = 100;
constexpr std::size_t kMaxPattern = 256;

struct PackRequest {
  model::RefName name;
  image::PackOptions options;
};

Result<void> check_patterns(const char* field, const std::vector<std::string>& patterns) {
  if (patterns.size() > kMaxPatterns) return invalid_argument(std::string(field) + ": more than 100 patterns");
  const auto fits = [](const std::string& pattern) { return !pattern.empty() && pattern.size() <= kMaxPattern && pattern.find('\0') == std::string::npos; };
  if (!std::all_of(patterns.begin(), patterns.end(), fits)) return invalid_argument(std::string(field) + ": a pattern is 1 to 256 bytes long");
  return {};
}

Result<void> read_canaries(model::StrictObject& fields, std::vector<image::ResidueRule>& out) {
  const json::array* items = fields.take_array("canaries");
  if (items == nullptr) return {};
  for (const json::value& item : *items) {
    image::ResidueRule rule;
    model::StrictObject inner(item, "canaries");
    inner.read("name", rule.name);
    inner.read("text", rule.text);
    DSEC_TRY(inner.finish());
    DSEC_TRY(image::check_residue_rule(rule).within("canaries"));
    out.push_back(std::move(rule));
  }
  if (out.size() > image::kMaxResidueRules) return Error(ErrorCode::kTooLarge, "canaries: too many, with those of the operator");
  return {};
}

Result<PackRequest> parse_pack(const json::value& body, const std::vector<image::ResidueRule>& residue) {
  PackRequest out;
  std::string name;
  image::ImportOptions& layer = out.options.layer;
  out.options.residue = residue;
  model::StrictObject fields(body, "");
  fields.read("name", name);
  fields.read_enum("kind", layer.kind, &model::parse_layer_kind);
  fields.read_enum("profile", layer.profile, &image::parse_profile);
  fields.read("remove", out.options.remove);
  fields.read("allow", out.options.allow);
  DSEC_TRY(read_canaries(fields, out.options.residue));
  DSEC_TRY(fields.finish());
  if (name.empty()) return invalid_argument("name: what the layer is to be called is missing");
  DSEC_ASSIGN(out.name, model::parse_ref(name).within("name"));
  if (layer.kind == model::LayerKind::kBase || layer.kind == model::LayerKind::kVerifier) return invalid_argument("kind: diff, workspace or toolkit");
  DSEC_TRY(check_patterns("remove", out.options.remove));
  DSEC_TRY(check_patterns("allow", out.options.allow));
  return out;
}

// A name that others rely on moves by an import or a promotion, never by a pack.
Result<void> expect_free(const ApiServer& server, const model::Principal& who, model::LayerKind kind, const model::RefName& name) {
  const Result<store::Ref> there = server.parts.catalogue.find_ref(who, store::ref_kind(kind), name.text());
  if (!there.ok() || there->project != who.project || there->quarantined) return {};
  return Error(ErrorCode::kConflict, "name: " + name.text() + " is in use; pack under another name and promote it to this one");
}

// Rules' names have no slash.
std::string label_of(const store::Ref& verifier) {
  std::string label = "verifier." + verifier.name.substr(0, 40);
  std::replace(label.begin(), label.end(), '/', '.');
  return label;
}

// The project's hidden tests, however they came into a sandbox.
Result<std::vector<image::ResidueRule>> rules_of(const image::LayerStore& layers, const std::vector<store::Ref>& refs) {
  std::vector<image::ResidueRule> rules;
  for (const store::Ref& ref : refs) {
    if (ref.kind != store::RefKind::kVerifier) continue;
    for (const std::string& digest : ref.layers) {
      DSEC_ASSIGN(std::vector<image::ResidueRule> of_layer, image::verifier_rules(layers, digest, label_of(ref)));
      rules.insert(rules.end(), std::make_move_iterator(of_layer.begin()), std::make_move_iterator(of_layer.end()));
    }
  }
  return rules;
}

asio::awaitable<Result<json::value>> pack(ApiServer& server, model::Principal who, std::string sandbox, std::optional<std::uint64_t> fence, PackRequest request, std::shared_ptr<Operation> operation) {
  const model::LayerKind kind = request.options.layer.kind;
  DSEC_CO_ASSIGN(const std::vector<image::ResidueRule> hidden, co_await hidden_rules(server, who));
  request.options.residue.insert(request.options.residue.end(), hidden.begin(), hidden.end());
  PackCommand command{who, std::move(sandbox), std::move(request.options), std::shared_ptr<std::atomic<bool>>(operation, &operation->cancelled), "packed", fence};
  command.options.layer.on_progress = progress_of(server, operation);
  DSEC_CO_ASSIGN(const model::LayerRecord record, co_await server.parts.edge.pack(std::move(command)));
  DSEC_CO_TRY(co_await net::on_pool(server.parts.imports, [&server, digest = record.digest]() -> Result<void> {
    put_into_store(server.parts, digest);
    return {};
  }));
  DSEC_CO_TRY(expect_free(server, who, kind, request.name));
  const store::Ref ref{.project = who.project, .kind = store::ref_kind(kind), .name = request.name.name, .tag = request.name.tag, .layers = {record.digest}, .quarantined = true};
  DSEC_CO_TRY(co_await server.parts.catalogue.put_ref(ref));
  DSEC_CO_ASSIGN(json::object described, describe_ref(server, ref));
  co_return json::value(std::move(described));
}

asio::awaitable<void> run_pack(ApiServer& server, model::Principal who, std::string sandbox, std::optional<std::uint64_t> fence, PackRequest request, std::shared_ptr<Operation> operation) {
  Result<json::value> outcome = co_await pack(server, std::move(who), std::move(sandbox), fence, std::move(request), operation);
  if (server.stopping) co_return;
  co_await server.operations.finish(operation, std::move(outcome));
}

}  // namespace

asio::awaitable<Result<std::vector<image::ResidueRule>>> hidden_rules(ApiServer& server, model::Principal who) {
  co_return co_await net::on_pool(server.parts.imports, [&layers = server.parts.layers, refs = server.parts.catalogue.refs(who)] { return rules_of(layers, refs); });
}

asio::awaitable<Result<void>> pack_sandbox(ApiServer& server, Call& call) {
  if (server.stopping) co_return Error(ErrorCode::kUnavailable, "the server is stopping");
  DSEC_CO_TRY(check_parameters(call.request(), {}));
  DSEC_CO_ASSIGN(const model::Sandbox sandbox, server.parts.edge.find(call.principal, call.path.at("ref")));
  DSEC_CO_ASSIGN(const std::string body, co_await call.exchange.read_body(kBodyLimit));
  DSEC_CO_ASSIGN(const json::value value, model::parse_json(body.empty() ? "{}" : body));
  DSEC_CO_ASSIGN(PackRequest request, parse_pack(value, server.options.residue));
  if (sandbox.state == model::SandboxState::kEnding || sandbox.state == model::SandboxState::kEnded)
    co_return Error(ErrorCode::kConflict, "the sandbox has ended, and what it wrote went with it");
  DSEC_CO_ASSIGN(const std::optional<std::uint64_t> fence, checked_fence(call, sandbox));
  request.options.layer.source_label = "sandbox " + sandbox.id;
  DSEC_CO_TRY(expect_free(server, call.principal, request.options.layer.kind, request.name));
  DSEC_CO_ASSIGN(auto operation, co_await start_operation(server, call, "pack"));
  asio::co_spawn(server.parts.io, run_pack(server, call.principal, sandbox.id, fence, std::move(request), operation), asio::detached);
  co_return co_await respond_json(call.exchange, 202, {{"operation_id", operation->id}, {"operation", to_json(*operation)}});
}

// The new name first: a crash leaves the layer under both, and never under none.
asio::awaitable<Result<void>> promote_layer(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {"kind", "name"}));
  DSEC_CO_ASSIGN(const store::Ref packed, find_layer_ref(server, call, call.path.at("ref")));
  const std::string old_name = packed.name + ":" + packed.tag;
  if (!packed.quarantined) co_return Error(ErrorCode::kConflict, old_name + " is not in quarantine");
  store::Ref promoted = packed;
  promoted.quarantined = false;
  if (const std::string* name = call.request().parameter("name")) {
    DSEC_CO_ASSIGN(const model::RefName wanted, model::parse_ref(*name).within("name"));
    promoted.name = wanted.name;
    promoted.tag = wanted.tag;
  }
  DSEC_CO_TRY(co_await server.parts.catalogue.put_ref(promoted));
  if (promoted.name + ":" + promoted.tag != old_name) DSEC_CO_TRY(co_await server.parts.catalogue.remove_ref(packed.project, packed.kind, old_name));
  DSEC_CO_ASSIGN(json::object described, describe_ref(server, promoted));
  co_return co_await respond_json(call.exchange, 200, std::move(described));
}

}  // namespace dsec::apiserver
