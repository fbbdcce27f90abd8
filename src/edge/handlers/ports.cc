// Traffic into a port of a sandbox, by path and by host.

#include <charconv>

#include "edge/handlers/handlers.h"
#include "net/blocking.h"
#include "net/reverse_proxy.h"

namespace dsec::edge::handlers {

namespace {

constexpr auto kDialDeadline = std::chrono::seconds(10);

asio::awaitable<Result<void>> carry(net::Exchange& exchange, SandboxRef sandbox, std::uint16_t port, net::ProxyOptions options) {
  if (!sandbox->running()) co_return Error(ErrorCode::kConflict, "the sandbox does not run");
  const std::shared_ptr<backend::Instance> instance = sandbox->instance();
  const Instant by = sandbox->context().clock.now() + kDialDeadline;
  Result<sys::Fd> upstream =
      co_await net::on_pool(sandbox->context().calls, [instance, port, by] { return instance->dial_port(port, Deadline::at(by)); });
  if (!upstream.ok()) {
    // Nothing listens: that is the sandbox's own doing, not the platform's.
    const bool refused = upstream.error().code() == ErrorCode::kUnavailable;
    net::ErrorAnswer answer{.status = 502, .infra = refused ? std::optional<bool>(false) : std::nullopt};
    answer.details["port"] = std::to_string(port);
    Error error(ErrorCode::kUnavailable, "port " + std::to_string(port) + ": " + upstream.error().message());
    co_return co_await exchange.respond(net::error_response(error, answer));
  }
  co_await net::proxy_to(exchange, std::move(upstream).value(), std::move(options));
  co_return Result<void>();
}

// What stands behind "/ports/{port}" in the target as it was sent, escapes and query included.
std::string rest_of_target(const std::string& target, std::size_t segments) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < segments && at != std::string::npos; ++i) at = target.find_first_of("/?", at + 1);
  if (at == std::string::npos) return "/";
  std::string out = target.substr(at);
  return out[0] == '?' ? "/" + out : out;
}

}  // namespace

asio::awaitable<Result<void>> port_path(net::Exchange& exchange, SandboxRef sandbox, Segments rest) {
  std::uint16_t port = 0;
  const std::string text = rest.size() > 1 ? rest[1] : "";
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), port);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || port == 0)
    co_return invalid_argument("\"" + text.substr(0, 16) + "\" is not a port");
  // "/v1/sandboxes/{ref}/ports/{port}" are five segments.
  net::ProxyOptions options{.address = net::PortAddress::kPath,
                            .target = rest_of_target(exchange.request().target, 5),
                            .host = "localhost:" + std::to_string(port)};
  co_return co_await carry(exchange, std::move(sandbox), port, std::move(options));
}

asio::awaitable<Result<void>> port_host(net::Exchange& exchange, SandboxRef sandbox, std::uint16_t port) {
  const std::string* host = exchange.request().header("host");
  net::ProxyOptions options{.address = net::PortAddress::kHost,
                            .target = exchange.request().target,
                            .host = host != nullptr ? *host : "localhost:" + std::to_string(port)};
  co_return co_await carry(exchange, std::move(sandbox), port, std::move(options));
}

}  // namespace dsec::edge::handlers
