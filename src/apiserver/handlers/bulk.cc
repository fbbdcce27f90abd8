// POST /v1/sandboxes:pause, :resume and :stop; what pauses stand.

#include <boost/json.hpp>
#include <charconv>

#include "apiserver/handlers/handlers.h"
#include "model/strict_object.h"
#include "model/time_text.h"

namespace dsec::apiserver {
namespace json = boost::json;
namespace {

constexpr std::size_t kMaxBody = 64 << 10;
constexpr std::uint64_t kDefaultDeadlineMs = 30'000;
constexpr std::uint64_t kLongestDeadlineMs = 300'000;
constexpr std::size_t kMostReason = 256;

Result<BulkCommand> command_of(const json::value& body, BulkCommand::Verb verb) {
  model::StrictObject fields(body, "");
  BulkCommand out;
  out.verb = verb;
  bool all = false;
  std::uint64_t deadline_ms = kDefaultDeadlineMs;
  fields.read("selector", out.selector);
  fields.read("all", all);
  fields.read("deadline_ms", deadline_ms);
  fields.read("reason", out.reason);
  if (verb == BulkCommand::Verb::kPause) fields.read_enum("wake", out.wake, &model::parse_wake);
  DSEC_TRY(fields.finish());
  if (out.selector.empty() && !all) return invalid_argument("selector: a label selector, to say what is meant; or all: true");
  if (!out.selector.empty() && all) return invalid_argument("selector: all of the project are meant, or those that it names");
  if (deadline_ms == 0 || deadline_ms > kLongestDeadlineMs) return invalid_argument("deadline_ms: a number from 1 to 300000");
  if (out.reason.empty() || out.reason.size() > kMostReason) return invalid_argument("reason: 1 to 256 bytes");
  out.within = std::chrono::milliseconds(deadline_ms);
  return out;
}

asio::awaitable<Result<void>> bulk(ApiServer& server, Call& call, BulkCommand::Verb verb) {
  if (server.stopping) co_return Error(ErrorCode::kUnavailable, "the server is stopping");
  DSEC_CO_TRY(check_parameters(call.request(), {}));
  DSEC_CO_ASSIGN(const std::string body, co_await call.exchange.read_body(kMaxBody));
  DSEC_CO_ASSIGN(const json::value value, model::parse_json(body.empty() ? "{}" : body));
  DSEC_CO_ASSIGN(BulkCommand command, command_of(value, verb));
  command.principal = call.principal;
  DSEC_CO_ASSIGN(command.fence, fence_of(call.request()));
  if (command.wake == model::Wake::kHolder && !command.fence)
    co_return invalid_argument("wake: holder needs X-Dsec-Fence, to know the holder by");
  DSEC_CO_ASSIGN(const std::vector<BulkResult> results, co_await server.parts.edge.bulk(std::move(command)));
  json::array out;
  for (const BulkResult& result : results) {
    json::object item{{"id", result.id}, {"name", result.name}, {"state", std::string(model::to_string(result.state))}};
    if (result.error) item["error"] = {{"code", std::string(traits(result.error->code()).name)}, {"message", result.error->message()}};
    out.push_back(std::move(item));
  }
  co_return co_await respond_json(call.exchange, 200, {{"results", std::move(out)}});
}

}  // namespace

Result<std::optional<std::uint64_t>> checked_fence(const Call& call, const model::Sandbox& sandbox) {
  DSEC_ASSIGN(const std::optional<std::uint64_t> fence, fence_of(call.request()));
  if (fence && *fence < sandbox.fence) return Error(ErrorCode::kConflict, "fenced: the sandbox has seen fence " + std::to_string(sandbox.fence));
  return fence;
}

Result<std::optional<std::uint64_t>> fence_of(const net::HttpRequest& request) {
  const std::string* text = request.header("x-dsec-fence");
  if (text == nullptr) return std::optional<std::uint64_t>();
  std::uint64_t fence = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), fence);
  if (error != std::errc() || end != text->data() + text->size() || fence == 0)
    return invalid_argument("X-Dsec-Fence: a number from 1 to 18446744073709551615");
  return std::optional<std::uint64_t>(fence);
}

asio::awaitable<Result<void>> pause_sandboxes(ApiServer& server, Call& call) { return bulk(server, call, BulkCommand::Verb::kPause); }
asio::awaitable<Result<void>> resume_sandboxes(ApiServer& server, Call& call) { return bulk(server, call, BulkCommand::Verb::kResume); }
asio::awaitable<Result<void>> stop_sandboxes(ApiServer& server, Call& call) { return bulk(server, call, BulkCommand::Verb::kStop); }

asio::awaitable<Result<void>> list_holds(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {}));
  json::array items;
  for (const Hold& hold : server.parts.edge.holds(call.principal.project)) {
    json::object item{{"selector", hold.selector}, {"all", hold.selector.empty()}, {"reason", hold.reason}, {"wake", std::string(model::to_string(hold.wake))}};
    if (hold.fence != 0) item["fence"] = hold.fence;
    item["at"] = model::time_text(hold.at_ms);
    item["queued"] = hold.queued;
    items.push_back(std::move(item));
  }
  co_return co_await respond_json(call.exchange, 200, {{"items", std::move(items)}});
}

}  // namespace dsec::apiserver
