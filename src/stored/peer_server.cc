#include "stored/peer_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <cerrno>
#include <charconv>
#include <thread>

#include "net/blocking.h"
#include "net/http_server.h"
#include "stored/allowance.h"

namespace dsec::stored {

namespace asio = boost::asio;

namespace {

constexpr std::size_t kThreads = 2;
constexpr std::size_t kQueue = 64;
constexpr std::size_t kMostInMemory = 64 << 20;  // of answers that are made or on their way
constexpr unsigned kStuckMs = 10'000;            // then a peer that takes nothing is cut off
constexpr int kBacklog = 128;

// Sockets that are accepted have its options.
Result<sys::Fd> listener_at(const std::string& address, std::uint16_t port) {
  sockaddr_in6 v6{};
  sockaddr_in v4{};
  const bool six = ::inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) == 1;
  if (!six && ::inet_pton(AF_INET, address.c_str(), &v4.sin_addr) != 1) return invalid_argument("\"" + address + "\" is not an address");
  v6.sin6_family = AF_INET6;
  v4.sin_family = AF_INET;
  v6.sin6_port = v4.sin_port = htons(port);
  sys::Fd fd(::socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_error("socket", errno);
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kStuckMs, sizeof kStuckMs);
  const auto* const at = six ? reinterpret_cast<const sockaddr*>(&v6) : reinterpret_cast<const sockaddr*>(&v4);
  if (::bind(fd.get(), at, six ? sizeof v6 : sizeof v4) != 0) return errno_error("bind", errno);
  if (::listen(fd.get(), kBacklog) != 0) return errno_error("listen", errno);
  return fd;
}

// Memory of an answer, as long as it is needed.
class Claim {
 public:
  Claim(std::size_t& total, std::size_t bytes) : total_(total), bytes_(bytes) { total_ += bytes_; }
  ~Claim() { total_ -= bytes_; }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

 private:
  std::size_t& total_;
  const std::size_t bytes_;
};

Result<std::uint64_t> number(const net::HttpRequest& request, std::string_view name) {
  const std::string* const text = request.parameter(name);
  std::uint64_t value = 0;
  if (text == nullptr || text->empty()) return invalid_argument(std::string(name) + " is missing");
  const auto [end, failure] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (failure != std::errc() || end != text->data() + text->size()) return invalid_argument(std::string(name) + " is not a number");
  return value;
}

// What was asked for: all bits when `count` is 0.
struct Asked {
  std::string hex;
  ChunkRun run;
};

Result<Asked> asked_by(const net::HttpRequest& request) {
  if (request.method != "GET" || request.segments.size() != 3 || request.segments[0] != "v1" || request.segments[1] != "chunks")
    return Error(ErrorCode::kNotFound, "there is nothing but GET /v1/chunks/HEX");
  Asked out{.hex = request.segments[2], .run = {}};
  if (request.query.empty()) return out;
  DSEC_ASSIGN(out.run.first, number(request, "first"));
  DSEC_ASSIGN(out.run.count, number(request, "count"));
  if (out.run.count == 0 || out.run.count > Blob::kMaxRun) return invalid_argument("count: from 1 to " + std::to_string(Blob::kMaxRun));
  return out;
}

class Server final : public PeerServer {
 public:
  Server(const PeerServerOptions& options, origin::FleetKey key, const LocalChunks& chunks, std::function<bool()> busy)
      : key_(std::move(key)), chunks_(chunks), busy_(std::move(busy)), allowance_(options.bytes_per_second), pool_({.name = "peers", .threads = kThreads, .queue_limit = kQueue}) {}

  Result<void> listen(const PeerServerOptions& options) {
    DSEC_ASSIGN(sys::Fd listener, listener_at(options.address, options.port));
    DSEC_ASSIGN(http_, net::HttpServer::serve(io_, std::move(listener),
                                              {.max_connections = options.connections, .max_header_bytes = 8 << 10, .header_timeout = std::chrono::seconds(5)},
                                              [this](net::Exchange& exchange) { return answer(exchange); }));
    thread_ = std::thread([this] { io_.run(); });
    return {};
  }

  ~Server() override {
    if (!thread_.joinable()) return;
    // Its connections live on the loop.
    asio::co_spawn(io_, destroy(), asio::use_future).get();
    work_.reset();
    io_.stop();
    thread_.join();
  }

  std::uint16_t port() const override { return http_->port(); }
  const PeerServerCounts& counts() const override { return counts_; }

 private:
  asio::awaitable<void> destroy() {
    http_.reset();
    co_return;
  }

  // Refuses before a byte of the disk is read.
  Result<Asked> admit(const net::HttpRequest& request, const std::string& authorization) {
    if (const auto known = key_.check(request.target, authorization, std::chrono::system_clock::now()); !known.ok()) {
      ++counts_.unsigned_;
      return known.error();
    }
    DSEC_ASSIGN(Asked asked, asked_by(request));
    const std::uint64_t bytes = asked.run.count * origin::ChunkIndex::kChunkBytes;
    if (busy_() || in_memory_ + bytes > kMostInMemory || !allowance_.take(bytes, std::chrono::steady_clock::now())) {
      ++counts_.busy;
      return Error(ErrorCode::kUnavailable, "this node has its hands full");
    }
    return asked;
  }

  asio::awaitable<void> answer(net::Exchange& exchange) {
    const std::string* const given = exchange.request().header("Authorization");
    const std::string authorization = given == nullptr ? "" : *given;
    const Result<Asked> asked = admit(exchange.request(), authorization);
    if (!asked.ok()) {
      (void)co_await exchange.respond(net::error_response(asked.error()));
      co_return;
    }
    const Claim claim(in_memory_, asked->run.count * origin::ChunkIndex::kChunkBytes);
    const auto work = [this, what = *asked, authorization]() -> Result<std::string> {
      DSEC_ASSIGN(const std::string bytes, what.run.count == 0 ? chunks_.bits(what.hex) : chunks_.read(what.hex, what.run));
      return key_.seal(bytes, authorization);
    };
    Result<std::string> sealed = co_await net::on_pool(pool_, work);
    if (!sealed.ok()) {
      (void)co_await exchange.respond(net::error_response(sealed.error()));
      co_return;
    }
    counts_.bytes += sealed->size() - origin::FleetKey::kSealBytes;
    (void)co_await exchange.respond({.headers = {{"Content-Type", "application/octet-stream"}}, .body = std::move(sealed).value()});
  }

  const origin::FleetKey key_;
  const LocalChunks& chunks_;
  const std::function<bool()> busy_;
  Allowance allowance_;
  PeerServerCounts counts_;
  std::size_t in_memory_ = 0;  // of the loop's thread
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  std::unique_ptr<net::HttpServer> http_;
  sys::WorkerPool pool_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<PeerServer>> PeerServer::start(PeerServerOptions options, origin::FleetKey key, const LocalChunks& chunks, std::function<bool()> busy) {
  auto made = std::make_unique<Server>(options, std::move(key), chunks, std::move(busy));
  DSEC_TRY(made->listen(options).within("serve peers at " + options.address + ":" + std::to_string(options.port)));
  return std::unique_ptr<PeerServer>(std::move(made));
}

}  // namespace dsec::stored
