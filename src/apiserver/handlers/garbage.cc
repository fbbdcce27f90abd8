// What keeps a layer, and the removal of what nothing keeps.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <optional>

#include "apiserver/handlers/handlers.h"
#include "model/strict_object.h"

namespace dsec::apiserver {
namespace json = boost::json;
namespace {

constexpr std::size_t kBodyLimit = 16 << 10;
constexpr std::int64_t kLongestSeconds = 10LL * 365 * 24 * 3600;
constexpr std::size_t kReasonLimit = 200;

Result<json::value> body_of(const std::string& text) { return model::parse_json(text.empty() ? "{}" : text); }

Result<void> check_seconds(const char* name, std::int64_t seconds) {
  if (seconds < 0 || seconds > kLongestSeconds) return invalid_argument(std::string(name) + ": from 0 to " + std::to_string(kLongestSeconds));
  return {};
}

struct CollectRequest {
  bool dry_run = false;
  bool store = false;  // the shared one, not this node's
  std::optional<std::chrono::milliseconds> condemn_after, delete_after;
};

Result<std::optional<std::chrono::milliseconds>> read_seconds(model::StrictObject& fields, const char* name) {
  if (!fields.has(name)) return std::optional<std::chrono::milliseconds>();
  std::int64_t seconds = 0;
  fields.read(name, seconds);
  DSEC_TRY(check_seconds(name, seconds));
  return std::optional<std::chrono::milliseconds>(std::chrono::seconds(seconds));
}

Result<CollectRequest> parse_collect(const json::value& value) {
  CollectRequest out;
  model::StrictObject fields(value, "");
  fields.read("dry_run", out.dry_run);
  fields.read("store", out.store);
  DSEC_ASSIGN(out.condemn_after, read_seconds(fields, "condemn_after_seconds"));
  DSEC_ASSIGN(out.delete_after, read_seconds(fields, "delete_after_seconds"));
  DSEC_TRY(fields.finish());
  if (out.store && out.condemn_after) return invalid_argument("condemn_after_seconds: in a store everything that no lease names is condemned at once");
  return out;
}

asio::awaitable<void> collect_store(ApiServer& server, origin::CollectionOptions options, std::shared_ptr<Operation> operation) {
  options.cancelled = &operation->cancelled;
  Result<json::object> done = co_await server.collector.collect_store(options);
  Result<json::value> outcome = json::value();
  if (done.ok())
    outcome = json::value(std::move(done).value());
  else
    outcome = std::move(done).error();
  co_await server.operations.finish(operation, std::move(outcome));
}

json::object to_json(const store::Pin& pin) {
  json::object out{{"project", pin.project}, {"digest", pin.digest}, {"owner", pin.owner}, {"reason", pin.reason}, {"created_at_ms", pin.created_at_ms}};
  if (pin.expires_at_ms != 0) out["expires_at_ms"] = pin.expires_at_ms;
  return out;
}

}  // namespace

asio::awaitable<Result<void>> collect_layers(ApiServer& server, Call& call) {
  DSEC_CO_ASSIGN(const std::string body, co_await call.exchange.read_body(kBodyLimit));
  DSEC_CO_ASSIGN(const json::value value, body_of(body));
  DSEC_CO_ASSIGN(const CollectRequest request, parse_collect(value));
  if (request.store) {
    const origin::CollectionOptions options{.dry_run = request.dry_run, .delete_after = request.delete_after.value_or(origin::CollectionOptions().delete_after)};
    DSEC_CO_ASSIGN(auto operation, co_await start_operation(server, call, "collect"));
    asio::co_spawn(server.parts.io, collect_store(server, options, operation), asio::detached);
    co_return co_await respond_json(call.exchange, 202, {{"operation_id", operation->id}, {"operation", to_json(*operation)}});
  }
  image::GarbagePolicy policy = server.options.garbage;
  policy.condemn_after = request.condemn_after.value_or(policy.condemn_after);
  policy.delete_after = request.delete_after.value_or(policy.delete_after);
  DSEC_CO_ASSIGN(json::object done, co_await server.collector.collect(policy, request.dry_run));
  co_return co_await respond_json(call.exchange, 200, std::move(done));
}

asio::awaitable<Result<void>> pin_layer(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {"kind"}));
  DSEC_CO_ASSIGN(const std::string body, co_await call.exchange.read_body(kBodyLimit));
  DSEC_CO_ASSIGN(const json::value value, body_of(body));
  store::Pin pin{.project = call.principal.project, .owner = call.principal.key_id, .created_at_ms = server.parts.catalogue.now_ms()};
  std::int64_t seconds = 0;
  model::StrictObject fields(value, "");
  fields.read("reason", pin.reason);
  fields.read("seconds", seconds);
  DSEC_CO_TRY(fields.finish());
  DSEC_CO_TRY(check_seconds("seconds", seconds));
  if (pin.reason.size() > kReasonLimit) co_return invalid_argument("reason: at most " + std::to_string(kReasonLimit) + " bytes");
  DSEC_CO_ASSIGN(pin.digest, readable_layer(server, call, call.path.at("ref")));
  DSEC_CO_TRY(server.parts.layers.find(pin.digest));
  if (seconds != 0) pin.expires_at_ms = pin.created_at_ms + seconds * 1000;
  DSEC_CO_TRY(co_await server.parts.catalogue.put_pin(pin));
  co_return co_await respond_json(call.exchange, 200, to_json(pin));
}

// By digest also where no ref names the layer any more.
asio::awaitable<Result<void>> unpin_layer(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {"kind"}));
  std::string digest = call.path.at("ref");
  if (!model::is_digest(digest)) {
    DSEC_CO_ASSIGN(digest, readable_layer(server, call, digest));
  }
  DSEC_CO_TRY(co_await server.parts.catalogue.remove_pin(call.principal.project, digest));
  co_return co_await call.exchange.respond({.status = 204});
}

asio::awaitable<Result<void>> list_pins(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {"cursor", "limit"}));
  json::array items;
  for (const store::Pin& pin : server.parts.catalogue.pins())
    if (pin.project == call.principal.project) items.push_back(to_json(pin));
  co_return co_await respond_json(call.exchange, 200, {{"items", std::move(items)}, {"next_cursor", ""}});
}

}  // namespace dsec::apiserver
