#include "net/stream_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <vector>

namespace dsec::net {

namespace {
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

Error gone(std::string_view doing, const boost::system::error_code& ec) {
  return Error(ErrorCode::kCancelled, std::string(doing) + ": " + ec.message(), ec.value());
}
}  // namespace

Result<Socket> adopt_socket(const asio::any_io_executor& executor, sys::Fd fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return errno_error("getsockname", errno);
  Socket socket(executor);
  boost::system::error_code ec;
  socket.assign(asio::generic::stream_protocol(address.ss_family, 0), fd.get(), ec);
  if (ec) return Error(ErrorCode::kInternal, "take over a socket: " + ec.message());
  fd.release();
  socket.native_non_blocking(true, ec);
  if (ec) return Error(ErrorCode::kInternal, "make a socket non-blocking: " + ec.message());
  return socket;
}

// Both fail on unix sockets, where they are not needed.
void set_no_delay(int fd) {
  const int on = 1;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void set_keep_alive(int fd) {
  const int on = 1;
  const int idle_seconds = 60;
  (void)::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
}

asio::awaitable<Result<void>> write_parts(Socket& socket, std::array<std::string_view, 3> parts) {
  std::size_t first = 0;
  while (true) {
    std::array<iovec, 3> vectors{};
    std::size_t count = 0;
    while (first < parts.size() && parts[first].empty()) ++first;
    for (std::size_t i = first; i < parts.size(); ++i)
      if (!parts[i].empty()) vectors[count++] = {const_cast<char*>(parts[i].data()), parts[i].size()};
    if (count == 0) co_return Result<void>{};
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = count;
    ssize_t sent = ::sendmsg(socket.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      // Asio waits better than we do: it keeps the descriptor registered.
      auto [ec, n] = co_await socket.async_write_some(asio::buffer(parts[first].data(), parts[first].size()), kAwait);
      if (ec) co_return gone("write", ec);
      sent = static_cast<ssize_t>(n);
    } else if (sent < 0) {
      co_return gone("write", {errno, boost::system::system_category()});
    }
    for (auto left = static_cast<std::size_t>(sent); left > 0;) {
      if (parts[first].empty()) {
        ++first;
        continue;
      }
      const std::size_t taken = std::min(left, parts[first].size());
      parts[first].remove_prefix(taken);
      left -= taken;
    }
  }
}

asio::awaitable<Result<std::size_t>> read_available(Socket& socket, std::span<char> buffer) {
  auto [ec, n] = co_await socket.async_read_some(asio::buffer(buffer.data(), buffer.size()), kAwait);
  if (ec == asio::error::eof) co_return std::size_t{0};
  if (ec) co_return gone("read", ec);
  co_return n;
}

asio::awaitable<void> close_lingering(Socket& socket) {
  constexpr std::size_t kMaxDropped = 4 << 20;
  boost::system::error_code ignored;
  socket.shutdown(Socket::shutdown_send, ignored);
  asio::steady_timer timer(socket.get_executor(), std::chrono::seconds(2));
  timer.async_wait([&socket](const boost::system::error_code& ec) {
    boost::system::error_code nothing;
    if (!ec) socket.close(nothing);
  });
  std::vector<char> buffer(16 << 10);
  for (std::size_t dropped = 0; dropped < kMaxDropped && socket.is_open();) {
    const Result<std::size_t> n = co_await read_available(socket, buffer);
    if (!n.ok() || *n == 0) break;
    dropped += *n;
  }
  // The handler above must have run, or have been cancelled, before `socket` goes.
  timer.cancel();
  socket.close(ignored);
}

}  // namespace dsec::net
