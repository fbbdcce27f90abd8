// Requests about one sandbox, on their way to their handlers.

#include "base/log.h"
#include "edge/edge.h"
#include "edge/handlers/handlers.h"

namespace dsec::edge {

namespace {

bool is_use(const net::HttpRequest& request, const std::vector<std::string>& rest) {
  if (request.method != "GET" && request.method != "HEAD") return true;
  if (rest.empty()) return false;
  return rest[0] == "files" || rest[0] == "ports" || (rest[0] == "exec" && rest.size() == 2 && rest[1] == "stream");
}

}  // namespace

asio::awaitable<void> Edge::serve(net::Exchange& exchange, model::Principal principal, std::string ref, std::vector<std::string> rest) {
  Result<std::shared_ptr<LiveSandbox>> sandbox = find(principal, ref);
  Result<void> outcome;
  Result<std::optional<model::Sandbox>> past = std::optional<model::Sandbox>();
  if (rest.empty() && (sandbox.ok() || sandbox.error().code() == ErrorCode::kNotFound))
    past = co_await find_past(principal.project, ref, sandbox.ok() ? *sandbox : nullptr);
  if (!past.ok()) {
    outcome = std::move(past).error();
  } else if (*past) {
    outcome = co_await serve_past(exchange, **std::move(past));
  } else if (sandbox.ok()) {
    outcome = co_await serve_live(exchange, principal, *sandbox, std::move(rest));
  } else {
    outcome = std::move(sandbox).error();
  }
  if (!outcome.ok() && !exchange.answered()) {
    if (Result<void> answered = co_await exchange.respond(net::error_response(outcome.error())); !answered.ok())
      log_debug("an answer was not taken", {{"why", answered.error().message()}});
  }
}

asio::awaitable<Result<void>> Edge::serve_live(net::Exchange& exchange, const model::Principal& principal, std::shared_ptr<LiveSandbox> sandbox,
                                               std::vector<std::string> rest) {
  const bool raises = principal.role != model::Role::kViewer;
  if (Result<bool> passed = handlers::pass_fence(exchange.request(), *sandbox, raises); !passed.ok()) {
    co_return std::move(passed).error();
  } else if (!*passed) {
    co_return co_await exchange.respond(handlers::fenced_response(*sandbox));
  }
  // To look at a sandbox is no use of it: what is recorded about it can be read for ever.
  std::optional<LiveSandbox::Use> use;
  if (is_use(exchange.request(), rest)) {
    use.emplace(sandbox);
    DSEC_CO_TRY(co_await make_ready(exchange.request(), sandbox, rest));
  }
  co_return co_await route(exchange, std::move(sandbox), std::move(rest));
}

asio::awaitable<Result<void>> Edge::make_ready(const net::HttpRequest& request, std::shared_ptr<LiveSandbox> sandbox, std::vector<std::string> rest) {
  if (request.method == "DELETE" && (rest.empty() || rest[0] == "exec")) co_return Result<void>();
  const std::string part = rest.empty() ? "" : rest[0];
  const bool writes_files = part == "files" && request.method != "GET";
  const Instant reachable_by = context_.clock.now() + options_.limits.channel_deadline;
  while (true) {
    // Commands wake it themselves, once they are known to be right.
    if (part == "files" || part == "ports" || part == "sessions") DSEC_CO_TRY(co_await handlers::wake(request, sandbox));
    // A sandbox that is being taken up again is reachable in a moment: who uses it waits for that.
    if (sandbox->running() && !sandbox->channel_open() && context_.clock.now() < reachable_by)
      co_await sandbox->changed().wait(reachable_by);
    // A pack has its own end.
    else if (writes_files && sandbox->running() && sandbox->stands_still())
      co_await sandbox->changed().wait(kNoInstant);
    else
      co_return Result<void>();
  }
}

asio::awaitable<Result<void>> Edge::route(net::Exchange& exchange, std::shared_ptr<LiveSandbox> sandbox, std::vector<std::string> rest) {
  if (rest.empty()) co_return co_await handlers::sandbox(exchange, std::move(sandbox));
  const std::string& area = rest[0];
  if (area == "exec") {
    if (rest.size() == 1 && exchange.request().method == "POST") ++execs_;
    co_return co_await handlers::exec(exchange, std::move(sandbox), std::move(rest));
  }
  if (area == "sessions") co_return co_await handlers::sessions(exchange, std::move(sandbox), std::move(rest));
  if (area == "files") co_return co_await handlers::files(exchange, std::move(sandbox), std::move(rest));
  if (area == "ports") co_return co_await handlers::port_path(exchange, std::move(sandbox), std::move(rest));
  if (area == "stats" && rest.size() == 1) co_return co_await handlers::stats(exchange, std::move(sandbox));
  if (area == "events" && rest.size() == 1) co_return co_await handlers::events(exchange, std::move(sandbox));
  if (area == "pause" && rest.size() == 1) co_return co_await handlers::pause(exchange, std::move(sandbox));
  if (area == "resume" && rest.size() == 1) co_return co_await handlers::resume(exchange, std::move(sandbox));
  co_return Error(ErrorCode::kNotFound, "there is nothing at this path");
}

asio::awaitable<void> Edge::serve_port_host(net::Exchange& exchange, std::string sandbox_id, std::uint16_t port) {
  const auto found = by_id_.find(sandbox_id);
  Result<void> outcome;
  if (found == by_id_.end()) {
    outcome = Error(ErrorCode::kNotFound, "there is no such sandbox");
  } else {
    const std::shared_ptr<LiveSandbox> sandbox = found->second;
    const LiveSandbox::Use use(sandbox);
    const Result<bool> passed = handlers::pass_fence(exchange.request(), *sandbox, false);
    if (!passed.ok()) outcome = passed.error();
    else if (!*passed) outcome = co_await exchange.respond(handlers::fenced_response(*sandbox));
    else outcome = co_await handlers::wake(exchange.request(), sandbox);
    if (outcome.ok() && !exchange.answered()) outcome = co_await handlers::port_host(exchange, sandbox, port);
  }
  if (!outcome.ok() && !exchange.answered()) {
    if (Result<void> answered = co_await exchange.respond(net::error_response(outcome.error())); !answered.ok())
      log_debug("an answer was not taken", {{"why", answered.error().message()}});
  }
}

}  // namespace dsec::edge
