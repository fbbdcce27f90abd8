// Pause, resume, and what other requests do about them: fences, and waking.

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/json.hpp>
#include <charconv>

#include "edge/handlers/handlers.h"
#include "model/json.h"
#include "model/json_text.h"
#include "model/strict_object.h"

namespace dsec::edge::handlers {

namespace json = boost::json;

namespace {

constexpr std::size_t kBody = 64 << 10;
constexpr std::size_t kMostReason = 256;
constexpr std::uint64_t kDefaultWaitMs = 30'000;
constexpr std::uint64_t kMaxWaitMs = 60'000;

using Outcome = std::shared_ptr<std::optional<Result<void>>>;

// The operation goes on whether or not the caller waits for it.
asio::awaitable<void> run(asio::awaitable<Result<void>> operation, SandboxRef sandbox, Outcome outcome) {
  *outcome = co_await std::move(operation);
  sandbox->changed().notify();
}

asio::awaitable<Result<void>> answer_when_done(net::Exchange& exchange, SandboxRef sandbox, asio::awaitable<Result<void>> operation, std::uint64_t wait_ms) {
  const Context& context = sandbox->context();
  const auto outcome = std::make_shared<std::optional<Result<void>>>();
  asio::co_spawn(context.io, run(std::move(operation), sandbox, outcome), asio::detached);
  const Instant by = context.clock.now() + std::chrono::milliseconds(wait_ms);
  while (!*outcome && !context.stopping && context.clock.now() < by) co_await sandbox->changed().wait(by);
  if (*outcome && !(*outcome)->ok()) co_return (*outcome)->error();
  co_return co_await exchange.respond(net::json_response(*outcome ? 200 : 202, model::json_text(model::to_json(sandbox->view()))));
}

Result<void> check_wait(std::uint64_t wait_ms) {
  if (wait_ms > kMaxWaitMs) return invalid_argument("wait_ms: a number from 0 to 60000");
  return {};
}

net::HttpResponse wrong_method() {
  return net::error_response(invalid_argument("this path takes POST"), {.status = 405, .headers = {{"Allow", "POST"}}});
}

}  // namespace

Result<std::optional<std::uint64_t>> fence_of(const net::HttpRequest& request) {
  const std::string* text = request.header("x-dsec-fence");
  if (text == nullptr) return std::optional<std::uint64_t>();
  std::uint64_t fence = 0;
  const auto parsed = std::from_chars(text->data(), text->data() + text->size(), fence);
  if (parsed.ec != std::errc() || parsed.ptr != text->data() + text->size() || fence == 0)
    return invalid_argument("X-Dsec-Fence: a number from 1 to 18446744073709551615");
  return std::optional<std::uint64_t>(fence);
}

Result<bool> pass_fence(const net::HttpRequest& request, LiveSandbox& sandbox, bool raises) {
  DSEC_ASSIGN(const std::optional<std::uint64_t> fence, fence_of(request));
  if (!fence || sandbox.over()) return true;
  if (!sandbox.passes(*fence)) return false;
  if (raises) DSEC_TRY(sandbox.raise_fence(*fence));
  return true;
}

net::HttpResponse fenced_response(const LiveSandbox& sandbox) {
  net::ErrorAnswer answer;
  answer.details["current_fence"] = std::to_string(sandbox.view().fence);
  return net::error_response(Error(ErrorCode::kConflict, "fenced: the sandbox has seen fence " + answer.details["current_fence"]), answer);
}

asio::awaitable<Result<void>> wake(const net::HttpRequest& request, SandboxRef sandbox, std::optional<Duration> within) {
  DSEC_CO_ASSIGN(const std::optional<std::uint64_t> fence, fence_of(request));
  const Context& context = sandbox->context();
  const Duration patience = std::min(within.value_or(context.limits.resume_deadline), context.limits.resume_deadline);
  co_return co_await sandbox->wake(fence, context.clock.now() + patience);
}

asio::awaitable<Result<void>> pause(net::Exchange& exchange, SandboxRef sandbox) {
  if (exchange.request().method != "POST") co_return co_await exchange.respond(wrong_method());
  DSEC_CO_ASSIGN(const std::string body, co_await exchange.read_body(kBody));
  DSEC_CO_ASSIGN(const json::value value, model::parse_json(body.empty() ? "{}" : body));
  model::StrictObject fields(value, "");
  LiveSandbox::PauseOptions options;
  std::uint64_t wait_ms = kDefaultWaitMs;
  fields.read("reason", options.reason);
  fields.read_enum("wake", options.wake, &model::parse_wake);
  fields.read("wait_ms", wait_ms);
  DSEC_CO_TRY(fields.finish());
  DSEC_CO_TRY(check_wait(wait_ms));
  if (options.reason.empty() || options.reason.size() > kMostReason) co_return invalid_argument("reason: 1 to 256 bytes");
  if (options.wake == model::Wake::kHolder) {
    DSEC_CO_ASSIGN(const std::optional<std::uint64_t> fence, fence_of(exchange.request()));
    if (!fence) co_return invalid_argument("wake: holder needs X-Dsec-Fence, to know the holder by");
    options.fence = *fence;
  }
  SandboxRef kept = sandbox;
  co_return co_await answer_when_done(exchange, std::move(sandbox), kept->pause(std::move(options)), wait_ms);
}

asio::awaitable<Result<void>> resume(net::Exchange& exchange, SandboxRef sandbox) {
  if (exchange.request().method != "POST") co_return co_await exchange.respond(wrong_method());
  DSEC_CO_ASSIGN(const std::string body, co_await exchange.read_body(kBody));
  DSEC_CO_ASSIGN(const json::value value, model::parse_json(body.empty() ? "{}" : body));
  model::StrictObject fields(value, "");
  std::uint64_t wait_ms = kDefaultWaitMs;
  fields.read("wait_ms", wait_ms);
  DSEC_CO_TRY(fields.finish());
  DSEC_CO_TRY(check_wait(wait_ms));
  DSEC_CO_ASSIGN(const std::optional<std::uint64_t> fence, fence_of(exchange.request()));
  SandboxRef kept = sandbox;
  co_return co_await answer_when_done(exchange, std::move(sandbox), kept->resume(fence, "user"), wait_ms);
}

}  // namespace dsec::edge::handlers
