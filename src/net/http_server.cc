#include "net/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>

#include "base/log.h"
#include "net/http_connection.h"

namespace dsec::net {

namespace {
constexpr int kBacklog = 4096;

std::string address_text(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET)
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text.data(), text.size());
  else if (address.ss_family == AF_INET6)
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text.data(), text.size());
  else
    return "unix";
  return text.data();
}

Result<sys::Fd> listen_tcp(const std::string& address, std::uint16_t port) {
  sockaddr_storage storage{};
  socklen_t length = 0;
  auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
  const std::string text = address == "localhost" ? "127.0.0.1" : address;
  if (::inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    length = sizeof v4;
  } else if (::inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    length = sizeof v6;
  } else {
    return invalid_argument("\"" + address + "\" is not an IP address");
  }
  sys::Fd fd(::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_error("socket", errno);
  const int on = 1;
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const std::string where = address + ":" + std::to_string(port);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) != 0) return errno_error("listen at " + where, errno);
  if (::listen(fd.get(), kBacklog) != 0) return errno_error("listen at " + where, errno);
  return fd;
}

std::uint16_t bound_port(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return 0;
  if (storage.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in&>(storage).sin_port);
  if (storage.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6&>(storage).sin6_port);
  return 0;
}

// What the accept loop needs; lives until the loop has ended.
struct Listener {
  asio::posix::stream_descriptor descriptor;
  std::shared_ptr<ServerState> state;
};

void start_connection(const std::shared_ptr<Listener>& listener, sys::Fd fd, const sockaddr_storage& peer) {
  const std::shared_ptr<ServerState>& state = listener->state;
  if (state->count() >= state->options.max_connections) {
    // One line and away: a refusal must not cost what a connection costs.
    constexpr std::string_view kFull =
        "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 123\r\n\r\n"
        R"({"error":{"code":"exhausted","message":"too many connections","retryable":true,"infra":false,"retry":"after","details":{}}})";
    (void)::send(fd.get(), kFull.data(), kFull.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return;
  }
  set_no_delay(fd.get());
  set_keep_alive(fd.get());
  Result<Socket> socket = adopt_socket(listener->descriptor.get_executor(), std::move(fd));
  if (!socket.ok()) {
    log_warning("a connection was dropped", {{"why", socket.error().message()}});
    return;
  }
  asio::co_spawn(listener->descriptor.get_executor(), run_connection(state, *std::move(socket), address_text(peer)), asio::detached);
}

asio::awaitable<void> accept_loop(std::shared_ptr<Listener> listener) {
  while (listener->descriptor.is_open()) {
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    sys::Fd fd(::accept4(listener->descriptor.native_handle(), reinterpret_cast<sockaddr*>(&peer), &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) {
      start_connection(listener, std::move(fd), peer);
      continue;
    }
    const int why = errno;
    if (why == EAGAIN || why == EWOULDBLOCK) {
      const auto [ec] = co_await listener->descriptor.async_wait(asio::posix::descriptor_base::wait_read, asio::as_tuple(asio::use_awaitable));
      if (ec) co_return;
    } else if (why == EMFILE || why == ENFILE || why == ENOBUFS || why == ENOMEM) {
      // The connection stays in the backlog; trying at once would spin.
      log_warning("cannot accept a connection", {{"why", errno_error("accept", why).message()}});
      asio::steady_timer pause(listener->descriptor.get_executor(), std::chrono::milliseconds(100));
      co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
    } else if (why == EBADF || why == EINVAL || why == ENOTSOCK) {
      co_return;
    }
  }
}

asio::awaitable<void> sweep_loop(std::shared_ptr<ServerState> state) {
  const Duration shortest = std::min(state->options.header_timeout, state->options.idle_timeout);
  const Duration step = std::clamp<Duration>(shortest / 8, std::chrono::milliseconds(10), std::chrono::seconds(1));
  while (true) {
    state->sweep_timer.expires_after(step);
    const auto [ec] = co_await state->sweep_timer.async_wait(asio::as_tuple(asio::use_awaitable));
    if (ec) co_return;
    const Instant now = std::chrono::steady_clock::now();
    state->for_each([now](Tracked& one) { one.abort_if_late(now); });
  }
}

class Server final : public HttpServer {
 public:
  Server(asio::io_context& io, sys::Fd fd, Options options, HttpHandler handler)
      : port_(bound_port(fd.get())),
        state_(std::make_shared<ServerState>(io, std::move(options), std::move(handler))),
        listener_(std::make_shared<Listener>(Listener{asio::posix::stream_descriptor(io, fd.release()), state_})) {
    asio::co_spawn(io, accept_loop(listener_), asio::detached);
    asio::co_spawn(io, sweep_loop(state_), asio::detached);
  }

  ~Server() override {
    stop_accepting();
    state_->sweep_timer.cancel();
    state_->for_each([](Tracked& one) { one.abort(); });
  }

  std::uint16_t port() const override { return port_; }
  std::size_t connections() const override { return state_->count(); }

  asio::awaitable<void> drain(Deadline deadline) override {
    // Held here: the server may be destroyed while we wait.
    const std::shared_ptr<ServerState> state = state_;
    stop_accepting();
    state->draining = true;
    state->for_each([](Tracked& one) { one.abort_if_waiting(); });
    while (state->count() > 0 && !deadline.passed()) {
      state->quiet.expires_at(deadline.when());
      co_await state->quiet.async_wait(asio::as_tuple(asio::use_awaitable));
    }
    state->for_each([](Tracked& one) { one.abort(); });
  }

 private:
  void stop_accepting() {
    boost::system::error_code ignored;
    listener_->descriptor.close(ignored);
  }

  const std::uint16_t port_;
  const std::shared_ptr<ServerState> state_;
  const std::shared_ptr<Listener> listener_;
};
}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::serve(asio::io_context& io, sys::Fd listener, Options options, HttpHandler handler) {
  const int flags = ::fcntl(listener.get(), F_GETFL);
  if (flags < 0 || ::fcntl(listener.get(), F_SETFL, flags | O_NONBLOCK) != 0) return errno_error("make a listener non-blocking", errno);
  return std::unique_ptr<HttpServer>(std::make_unique<Server>(io, std::move(listener), std::move(options), std::move(handler)));
}

Result<std::unique_ptr<HttpServer>> HttpServer::listen(asio::io_context& io, Options options, HttpHandler handler) {
  DSEC_ASSIGN(sys::Fd fd, listen_tcp(options.address, options.port));
  return serve(io, std::move(fd), std::move(options), std::move(handler));
}

}  // namespace dsec::net
