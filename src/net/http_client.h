// An HTTP/1.1 client: one connection, one request at a time, bodies streamed
// both ways. TCP by address or name, unix sockets, or a connected descriptor.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "net/exchange.h"

namespace dsec::net {

// "http://host:port/prefix" or "unix:/path/to.sock".
struct Endpoint {
  std::string host;           // name or address, without brackets
  std::uint16_t port = 80;
  std::string unix_path;      // not empty: a unix socket
  std::string path_prefix;    // "" or "/prefix", without a final slash
  std::string host_header() const;
};
Result<Endpoint> parse_endpoint(std::string_view url);

struct ResponseHead {
  int status = 0;
  HeaderList headers;
  std::optional<std::uint64_t> content_length;
  const std::string* header(std::string_view name) const;
};

enum class BodyFraming { kNone, kLength, kChunked };

class ClientConnection {
 public:
  // kUnavailable when nothing listens, kDeadlineExceeded.
  static asio::awaitable<Result<std::unique_ptr<ClientConnection>>> connect(Endpoint endpoint, Deadline deadline);
  // A connected descriptor. Runs on the executor of the calling coroutine.
  static asio::awaitable<Result<std::unique_ptr<ClientConnection>>> adopt(sys::Fd fd);
  virtual ~ClientConnection() = default;

  struct Request {
    std::string method = "GET";
    std::string target = "/";
    HeaderList headers;  // Host too; framing headers are made here
    BodyFraming framing = BodyFraming::kNone;
    std::uint64_t length = 0;
    bool upgrade = false;  // sends "Connection: Upgrade"; Upgrade is among the headers
  };
  virtual asio::awaitable<Result<void>> send_head(Request request) = 0;
  virtual asio::awaitable<Result<void>> write_body(std::string_view bytes) = 0;
  virtual asio::awaitable<Result<void>> end_body() = 0;
  // Skips 1xx, but not 101. kInvalidArgument for what is not HTTP.
  virtual asio::awaitable<Result<ResponseHead>> read_head() = 0;
  virtual asio::awaitable<Result<std::size_t>> read_some(std::span<char> buffer) = 0;  // 0 at the end
  virtual asio::awaitable<Result<std::string>> read_body(std::size_t limit) = 0;
  // After a whole answer: true when the next request may use this connection.
  virtual bool reusable() const = 0;
  // One whole call; the answer's body is held in memory.
  virtual asio::awaitable<Result<HttpResponse>> call(std::string method, std::string target, HeaderList headers, std::string body,
                                                     std::size_t limit) = 0;
  // After a 101: the stream, with what was read behind the head.
  virtual Exchange::RawConnection take() = 0;
  // Makes the handshake. The connection is used up.
  virtual asio::awaitable<Result<std::unique_ptr<WebSocket>>> websocket(std::string target, HeaderList headers) = 0;
  // Makes pending and later calls fail. For deadlines: callable while another coroutine waits.
  virtual void abort() = 0;
};

}  // namespace dsec::net
