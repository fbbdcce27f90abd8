// For tests: a server on its own thread, and a raw client that says what it likes.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <atomic>
#include <thread>
#include <vector>

#include "net/blocking_client.h"
#include "net/http_server.h"

namespace dsec::net {

class LoopThread {
 public:
  LoopThread() : work_(io.get_executor()), thread_([this] { io.run(); }) {}
  ~LoopThread() { stop(); }
  void stop() {
    work_.reset();
    io.stop();
    if (thread_.joinable()) thread_.join();
  }
  // Runs a coroutine on the loop and waits for it.
  template <typename T>
  T run(asio::awaitable<T> coroutine) {
    return asio::co_spawn(io, std::move(coroutine), asio::use_future).get();
  }
  asio::io_context io{1};

 private:
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread thread_;
};

class TestServer {
 public:
  explicit TestServer(HttpHandler handler, HttpServer::Options options = {}) {
    auto listening = HttpServer::listen(loop.io, std::move(options), std::move(handler));
    EXPECT_TRUE(listening.ok());
    server = *std::move(listening);
  }
  ~TestServer() {
    // Destroyed on the loop, where its connections live.
    loop.run(destroy());
    loop.stop();
  }
  std::uint16_t port() const { return server->port(); }
  LoopThread loop;
  std::unique_ptr<HttpServer> server;

 private:
  asio::awaitable<void> destroy() {
    server.reset();
    co_return;
  }
};

inline BlockingClient client_of(std::uint16_t port) {
  return BlockingClient(*parse_server_address("http://127.0.0.1:" + std::to_string(port)), {{"X-Client", "test"}});
}
inline Deadline soon() { return Deadline::in(std::chrono::seconds(10)); }

// Streams the request's body back.
inline asio::awaitable<void> echo_body(Exchange& exchange) {
  (void)co_await exchange.begin(200, {});
  std::array<char, 4096> part;
  while (true) {
    const Result<std::size_t> n = co_await exchange.read_some(part);
    if (!n.ok() || *n == 0) break;
    if (!(co_await exchange.write({part.data(), *n})).ok()) co_return;
  }
  (void)co_await exchange.end();
}

// A call that sends `total` bytes; what comes back is counted.
inline Result<std::size_t> upload(BlockingClient client, std::size_t total) {
  std::size_t sent = 0;
  std::size_t received = 0;
  HttpCall call{.method = "POST", .target = "/"};
  call.body_source = [&]() -> Result<std::string> {
    const std::size_t n = std::min<std::size_t>(300'000, total - sent);
    sent += n;
    return std::string(n, 'x');
  };
  const Result<HttpAnswer> answer = client.call(call, [&](std::string_view part) -> Result<void> {
    received += part.size();
    return {};
  });
  if (!answer.ok()) return answer.error();
  EXPECT_EQ(answer->status, 200);
  return received;
}

class RawClient {
 public:
  explicit RawClient(std::uint16_t port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0) ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
  }
  void finish_sending() { ::shutdown(fd_.get(), SHUT_WR); }
  // Reads until `mark` is seen, the end, or five seconds have passed.
  std::string read_until(std::string_view mark) {
    const Deadline deadline = Deadline::in(std::chrono::seconds(5));
    std::string seen;
    while (mark.empty() || seen.find(mark) == std::string::npos) {
      pollfd waiting{fd_.get(), POLLIN, 0};
      if (::poll(&waiting, 1, deadline.left_ms()) <= 0) return seen + "<timeout>";
      std::array<char, 4096> part;
      const ssize_t n = ::recv(fd_.get(), part.data(), part.size(), 0);
      if (n <= 0) {
        closed = true;
        return seen;
      }
      seen.append(part.data(), static_cast<std::size_t>(n));
    }
    return seen;
  }
  std::string read_to_end() { return read_until(""); }
  bool closed = false;
  int fd() const { return fd_.get(); }

 private:
  sys::Fd fd_;
};

// A server that answers the first bytes of every connection with the given ones.
class RawServer {
 public:
  enum class Then { kClose, kStay };
  explicit RawServer(std::string answer, Then then = Then::kClose) : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    socklen_t length = sizeof address;
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, then, answer = std::move(answer)] {
      while (true) {
        sys::Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!fd) return;
        std::array<char, 65536> part;
        const ssize_t n = ::recv(fd.get(), part.data(), part.size(), 0);
        if (n > 0) seen_.append(part.data(), static_cast<std::size_t>(n));
        ++connections_;
        (void)::send(fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
        if (then == Then::kStay) staying_.push_back(std::move(fd));
      }
    });
  }
  ~RawServer() { stop(); }
  std::string stop() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    return seen_;
  }
  std::uint16_t port() const { return port_; }
  int connections() const { return connections_; }

 private:
  sys::Fd listener_;
  std::uint16_t port_ = 0;
  std::string seen_;
  std::atomic<int> connections_{0};
  std::vector<sys::Fd> staying_;
  std::thread thread_;
};

}  // namespace dsec::net
