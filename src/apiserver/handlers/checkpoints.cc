// Checkpoints of sandboxes, snapshots with names, and what is made of them: rollback and fork.
#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <charconv>

#include "apiserver/handlers/handlers.h"
#include "model/json.h"
#include "model/strict_object.h"
#include "model/time_text.h"
#include "net/blocking.h"

namespace dsec::apiserver {
namespace json = boost::json;
namespace {

constexpr std::size_t kBodyLimit = 64 << 10;
constexpr std::int64_t kDefaultSeconds = 24 * 3600;  // of a checkpoint; a snapshot stays until it is removed
constexpr std::int64_t kForkSeconds = 3600;          // of the checkpoint that a fork leaves
constexpr std::int64_t kLongestSeconds = 10LL * 365 * 24 * 3600;
constexpr std::size_t kMostOfAProject = 10'000;
constexpr std::size_t kMostChildren = 256;

json::object to_json(const store::Checkpoint& checkpoint) {
  json::object out{{"checkpoint_id", checkpoint.id},
                   {"sandbox", checkpoint.sandbox},
                   {"parent", checkpoint.parent.empty() ? json::value(nullptr) : json::value(checkpoint.parent)},
                   {"bytes", checkpoint.bytes},
                   {"resources", model::to_json(checkpoint.resources)},
                   {"created_at", model::time_text(checkpoint.created_at_ms)},
                   {"expires_at", checkpoint.expires_at_ms == 0 ? json::value(nullptr) : json::value(model::time_text(checkpoint.expires_at_ms))}};
  if (!checkpoint.name.empty()) out["name"] = checkpoint.name;
  return out;
}

Result<void> check_seconds(std::int64_t seconds) {
  if (seconds < 0 || seconds > kLongestSeconds) return invalid_argument("expires_seconds: from 0, for never, to " + std::to_string(kLongestSeconds));
  return {};
}

// Where the sandbox's files came from: its own last checkpoint over the same layers,
// since it was rolled back last, or the one whose layers it was made of.
std::string parent_of(const std::vector<store::Checkpoint>& all, const model::Sandbox& sandbox) {
  std::string own, origin;
  for (const store::Checkpoint& one : all) {
    const std::vector<std::string> below(one.layers.begin(), one.layers.end() - 1);
    if (one.sandbox == sandbox.id && below == sandbox.layer_digests && one.created_at_ms >= sandbox.rolled_back_at_ms) own = one.id;
    if (one.layers == sandbox.layer_digests) origin = one.id;
  }
  return own.empty() ? origin : own;
}

struct Taking {
  std::string name;
  std::string key;
  std::int64_t seconds = kDefaultSeconds;  // 0 = for ever
  std::optional<std::uint64_t> fence = std::nullopt;
};

asio::awaitable<Result<store::Checkpoint>> take(ApiServer& server, model::Principal who, model::Sandbox sandbox, Taking taking) {
  const std::vector<store::Checkpoint> all = server.parts.catalogue.checkpoints(who.project);
  if (all.size() >= kMostOfAProject) co_return Error(ErrorCode::kExhausted, "the project has " + std::to_string(all.size()) + " checkpoints, its limit");
  if (!taking.name.empty() && server.parts.catalogue.find_checkpoint(who.project, taking.name).ok())
    co_return Error(ErrorCode::kConflict, "name: \"" + taking.name + "\" is taken by another snapshot");
  PackCommand command{who, sandbox.id, {}, std::make_shared<std::atomic<bool>>(false), taking.name.empty() ? "checkpoint" : "snapshot", taking.fence, true};
  command.options.layer.kind = model::LayerKind::kDiff;
  command.options.layer.profile = erofs::Profile::kPlain;  // speed now, not size
  command.options.layer.source_label = "sandbox " + sandbox.id;
  DSEC_CO_ASSIGN(const model::LayerRecord layer, co_await server.parts.edge.pack(std::move(command)));
  // After the pack: what a rollback before it changed is known now.
  DSEC_CO_ASSIGN(const model::Sandbox now, server.parts.edge.find(who, sandbox.id));
  store::Checkpoint out{.id = server.parts.catalogue.new_checkpoint_id(), .project = who.project, .sandbox = sandbox.id};
  out.parent = parent_of(server.parts.catalogue.checkpoints(who.project), now);
  out.name = taking.name;
  out.key = taking.key;
  out.layers = layer.provenance ? layer.provenance->parents : now.layer_digests;
  out.layers.push_back(layer.digest);
  out.resources = now.spec.resources;
  out.bytes = layer.content_bytes;
  out.created_at_ms = server.parts.catalogue.now_ms();
  if (taking.seconds != 0) out.expires_at_ms = out.created_at_ms + taking.seconds * 1000;
  DSEC_CO_TRY(co_await server.parts.catalogue.put_checkpoint(out));
  // With a shared store another node can go on from it.
  DSEC_CO_TRY(co_await net::on_pool(server.parts.imports, [&server, digest = layer.digest]() -> Result<void> {
    put_into_store(server.parts, digest);
    return {};
  }));
  co_return out;
}

Result<json::value> body_of(const std::string& text) { return model::parse_json(text.empty() ? "{}" : text); }

}  // namespace

asio::awaitable<Result<void>> checkpoint_sandbox(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {}));
  DSEC_CO_ASSIGN(const model::Sandbox sandbox, server.parts.edge.find(call.principal, call.path.at("ref")));
  DSEC_CO_ASSIGN(const std::string body, co_await call.exchange.read_body(kBodyLimit));
  DSEC_CO_ASSIGN(const json::value value, body_of(body));
  Taking taking;
  DSEC_CO_ASSIGN(taking.fence, checked_fence(call, sandbox));
  model::StrictObject fields(value, "");
  fields.read("expires_seconds", taking.seconds);
  DSEC_CO_TRY(fields.finish());
  DSEC_CO_TRY(check_seconds(taking.seconds));
  DSEC_CO_ASSIGN(const store::Checkpoint made, co_await take(server, call.principal, sandbox, std::move(taking)));
  co_return co_await respond_json(call.exchange, 201, to_json(made));
}

asio::awaitable<Result<void>> snapshot_sandbox(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {}));
  DSEC_CO_ASSIGN(const model::Sandbox sandbox, server.parts.edge.find(call.principal, call.path.at("ref")));
  DSEC_CO_ASSIGN(const std::string body, co_await call.exchange.read_body(kBodyLimit));
  DSEC_CO_ASSIGN(const json::value value, body_of(body));
  Taking taking{.seconds = 0};
  DSEC_CO_ASSIGN(taking.fence, checked_fence(call, sandbox));
  model::StrictObject fields(value, "");
  fields.read("name", taking.name);
  fields.read("expires_seconds", taking.seconds);
  DSEC_CO_TRY(fields.finish());
  DSEC_CO_TRY(check_seconds(taking.seconds));
  if (taking.name.empty()) co_return invalid_argument("name: what the snapshot is to be called is missing");
  model::SandboxSpec named;
  named.snapshot = taking.name;
  DSEC_CO_TRY(model::validate(named).within("name"));
  if (taking.name.starts_with("ckpt_")) co_return invalid_argument("name: ckpt_ begins the ids of checkpoints");
  DSEC_CO_ASSIGN(const store::Checkpoint made, co_await take(server, call.principal, sandbox, std::move(taking)));
  co_return co_await respond_json(call.exchange, 201, to_json(made));
}

asio::awaitable<Result<void>> list_sandbox_checkpoints(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {}));
  const Result<model::Sandbox> live = server.parts.edge.find(call.principal, call.path.at("ref"));
  const std::string id = live.ok() ? live->id : call.path.at("ref");
  json::array items;
  for (const store::Checkpoint& checkpoint : server.parts.catalogue.checkpoints(call.principal.project))
    if (checkpoint.sandbox == id) items.push_back(to_json(checkpoint));
  if (items.empty() && !live.ok()) co_return live.error();
  co_return co_await respond_json(call.exchange, 200, {{"items", std::move(items)}, {"next_cursor", ""}});
}

asio::awaitable<Result<void>> rollback_sandbox(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {}));
  DSEC_CO_ASSIGN(const model::Sandbox sandbox, server.parts.edge.find(call.principal, call.path.at("ref")));
  DSEC_CO_ASSIGN(const std::string body, co_await call.exchange.read_body(kBodyLimit));
  DSEC_CO_ASSIGN(const json::value value, body_of(body));
  std::string wanted;
  model::StrictObject fields(value, "");
  fields.read("checkpoint_id", wanted);
  DSEC_CO_TRY(fields.finish());
  if (wanted.empty()) co_return invalid_argument("checkpoint_id is missing");
  DSEC_CO_ASSIGN(const store::Checkpoint checkpoint, server.parts.catalogue.find_checkpoint(call.principal.project, wanted).within("checkpoint_id"));
  DSEC_CO_ASSIGN(const std::optional<std::uint64_t> fence, checked_fence(call, sandbox));
  DSEC_CO_TRY((co_await take_missing(server, checkpoint.layers)).within("checkpoint_id"));
  DSEC_CO_ASSIGN(const model::Sandbox after, co_await server.parts.edge.rollback({call.principal, sandbox.id, checkpoint.id, checkpoint.layers, fence}));
  co_return co_await respond_json(call.exchange, 200, model::to_json(after));
}

namespace {

struct ForkRequest {
  std::int64_t count = 1;
  std::vector<std::string> names;
  std::map<std::string, std::string> labels;
  bool own_labels = false;
};

Result<ForkRequest> parse_fork(const json::value& value) {
  ForkRequest out;
  model::StrictObject fields(value, "");
  const bool counted = fields.has("count");
  out.own_labels = fields.has("labels");
  fields.read("count", out.count);
  fields.read("names", out.names);
  fields.read("labels", out.labels);
  DSEC_TRY(fields.finish());
  if (!counted && !out.names.empty()) out.count = static_cast<std::int64_t>(out.names.size());
  if (out.count < 1 || out.count > static_cast<std::int64_t>(kMostChildren)) return invalid_argument("count: from 1 to " + std::to_string(kMostChildren));
  if (!out.names.empty() && out.names.size() != static_cast<std::size_t>(out.count)) return invalid_argument("names: as many as count says");
  return out;
}

// What a child has of its parent: what the parent was asked to be, its rules as they are
// now, and the files; nothing that tells one from the other.
model::SandboxSpec child_spec(const model::Sandbox& parent, const store::Checkpoint& checkpoint, const ForkRequest& request, std::size_t number) {
  model::SandboxSpec spec = parent.spec;
  spec.name = request.names.empty() ? "" : request.names[number];
  spec.image.clear();
  spec.environment = {};
  spec.snapshot = checkpoint.id;
  spec.hostname.clear();
  if (request.own_labels) spec.labels = request.labels;
  return spec;
}

struct Children {
  explicit Children(std::size_t count) : answers(count), left(count) {}
  std::vector<json::object> answers;
  std::size_t left;
};

asio::awaitable<void> make_child(ApiServer& server, CreateCommand command, std::shared_ptr<Children> children, std::size_t number, std::shared_ptr<asio::steady_timer> done) {
  const Result<Made> made = co_await make_sandbox(server, std::move(command));
  if (made.ok())
    children->answers[number]["sandbox"] = model::to_json(made->sandbox);
  else
    children->answers[number]["error"] = net::error_object(made.error());
  if (--children->left == 0) done->cancel();
}

}  // namespace

asio::awaitable<Result<void>> fork_sandbox(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {}));
  DSEC_CO_ASSIGN(const model::Sandbox parent, server.parts.edge.find(call.principal, call.path.at("ref")));
  DSEC_CO_ASSIGN(const std::string body, co_await call.exchange.read_body(kBodyLimit));
  DSEC_CO_ASSIGN(const json::value value, body_of(body));
  DSEC_CO_ASSIGN(const ForkRequest request, parse_fork(value));
  DSEC_CO_ASSIGN(const std::string key, idempotency_key_of(call));
  DSEC_CO_ASSIGN(const std::optional<std::uint64_t> fence, checked_fence(call, parent));
  // The same call again means the same children: of the checkpoint that the first one took.
  std::optional<store::Checkpoint> checkpoint;
  for (const store::Checkpoint& one : server.parts.catalogue.checkpoints(call.principal.project))
    if (!key.empty() && one.key == key && one.sandbox == parent.id) checkpoint = one;
  if (!checkpoint) {
    DSEC_CO_ASSIGN(checkpoint, co_await take(server, call.principal, parent, {.name = "", .key = key, .seconds = kForkSeconds, .fence = fence}));
  }
  const auto children = std::make_shared<Children>(static_cast<std::size_t>(request.count));
  const auto done = std::make_shared<asio::steady_timer>(server.parts.io, asio::steady_timer::time_point::max());
  for (std::size_t i = 0; i < children->answers.size(); ++i) {
    CreateCommand command{.principal = call.principal, .spec = child_spec(parent, *checkpoint, request, i), .layers = {}};
    if (!key.empty()) command.idempotency_key = "fork/" + checkpoint->id + "/" + std::to_string(i);
    asio::co_spawn(server.parts.io, make_child(server, std::move(command), children, i, done), asio::detached);
  }
  while (children->left > 0) {
    boost::system::error_code ignored;
    co_await done->async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  json::array sandboxes(children->answers.begin(), children->answers.end());
  co_return co_await respond_json(call.exchange, 200, {{"checkpoint_id", checkpoint->id}, {"sandboxes", std::move(sandboxes)}});
}

asio::awaitable<Result<void>> list_snapshots(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {"sandbox", "named", "limit", "cursor"}));
  const std::string* sandbox = call.request().parameter("sandbox");
  const std::string* named = call.request().parameter("named");
  if (named != nullptr && *named != "true" && *named != "false") co_return invalid_argument("named: true or false");
  std::size_t limit = 1000;
  if (const std::string* text = call.request().parameter("limit")) {
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), limit);
    if (error != std::errc() || end != text->data() + text->size() || limit < 1 || limit > 1000) co_return invalid_argument("limit: a number from 1 to 1000");
  }
  const std::string* cursor = call.request().parameter("cursor");
  json::array items;
  std::string next, last;
  bool begun = cursor == nullptr || cursor->empty();
  for (const store::Checkpoint& checkpoint : server.parts.catalogue.checkpoints(call.principal.project)) {
    if (!begun) {
      begun = checkpoint.id == *cursor;
      continue;
    }
    if ((sandbox != nullptr && checkpoint.sandbox != *sandbox) || (named != nullptr && *named == "true" && checkpoint.name.empty())) continue;
    if (items.size() == limit) {
      next = last;
      break;
    }
    last = checkpoint.id;
    items.push_back(to_json(checkpoint));
  }
  co_return co_await respond_json(call.exchange, 200, {{"items", std::move(items)}, {"next_cursor", next}});
}

asio::awaitable<Result<void>> get_snapshot(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {}));
  DSEC_CO_ASSIGN(const store::Checkpoint checkpoint, server.parts.catalogue.find_checkpoint(call.principal.project, call.path.at("ref")));
  co_return co_await respond_json(call.exchange, 200, to_json(checkpoint));
}

asio::awaitable<Result<void>> delete_snapshot(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {}));
  DSEC_CO_ASSIGN(const store::Checkpoint checkpoint, server.parts.catalogue.find_checkpoint(call.principal.project, call.path.at("ref")));
  DSEC_CO_TRY(co_await server.parts.catalogue.remove_checkpoints({checkpoint.id}));
  co_return co_await call.exchange.respond({.status = 204});
}

}  // namespace dsec::apiserver
