// Exchange: one HTTP/1.1 request and its answer, seen from a handler.
//
// The server (http_server.h) makes one per request and calls the handler as a
// coroutine on the one event loop. Nothing here buffers without bound: a body
// is read as the handler asks for it, a stream is written as the client takes it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/json/object.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "net/header_list.h"
#include "sys/fd.h"

namespace dsec::net {

namespace asio = boost::asio;

struct HttpRequest {
  std::string method;
  std::string target;             // as sent
  std::string path;               // before '?', percent-decoded
  std::vector<std::string> segments;  // of the path, each decoded on its own: "/v1/a%2Fb" -> {"v1","a/b"}
  std::vector<std::pair<std::string, std::string>> query;  // decoded
  HeaderList headers;             // in order, names as sent
  std::string remote_address;     // "127.0.0.1"
  bool websocket_upgrade = false;
  bool upgrade = false;           // any Upgrade header

  // Case does not matter. The first one; nullptr when absent.
  const std::string* header(std::string_view name) const;
  const std::string* parameter(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  HeaderList headers;
  std::string body;
};

// One WebSocket, after the upgrade. read() and write() may be used at the same
// time by two coroutines, but each by one only.
class WebSocket {
 public:
  struct Message {
    bool text = true;
    std::string bytes;
  };
  virtual ~WebSocket() = default;
  // kCancelled when the peer closed. A message longer than 1 MiB closes with 1009.
  virtual asio::awaitable<Result<Message>> read() = 0;
  virtual asio::awaitable<Result<void>> write(bool text, std::string_view bytes) = 0;
  virtual asio::awaitable<void> close(std::uint16_t code, std::string_view reason) = 0;
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;

  // The whole body; kTooLarge past the limit.
  virtual asio::awaitable<Result<std::string>> read_body(std::size_t limit) = 0;
  // The next part; 0 at the end. Content-Length and chunked alike.
  virtual asio::awaitable<Result<std::size_t>> read_some(std::span<char> buffer) = 0;
  virtual std::optional<std::uint64_t> content_length() const = 0;

  virtual asio::awaitable<Result<void>> respond(HttpResponse response) = 0;
  // A streamed answer: chunked, or of `length` bytes.
  virtual asio::awaitable<Result<void>> begin(int status, HeaderList headers, std::optional<std::uint64_t> length = {}) = 0;
  virtual asio::awaitable<Result<void>> write(std::string_view bytes) = 0;
  virtual asio::awaitable<Result<void>> end() = 0;
  virtual bool answered() const = 0;

  virtual asio::awaitable<Result<std::unique_ptr<WebSocket>>> accept_websocket(HeaderList headers = {}) = 0;
  // Hands over the connection's descriptor and what was already read from it,
  // for tunnels. No answer has been written. The exchange is over afterwards.
  struct RawConnection {
    sys::Fd fd;
    std::string already_read;
  };
  virtual asio::awaitable<Result<RawConnection>> take_connection() = 0;

  // Completes when the client has gone away, while a handler waits for something else.
  virtual asio::awaitable<void> client_gone() = 0;
};

using HttpHandler = std::function<asio::awaitable<void>(Exchange&)>;

// {"error":{...}} of the contract, with Retry-After where it belongs.
HttpResponse error_response(const Error& error);
// What an answer has beyond the table of error codes.
struct ErrorAnswer {
  int status = 0;             // 0 = the code's
  std::optional<bool> infra;  // else the code's: a port of a sandbox that answers nonsense is not the platform's fault
  HeaderList headers;
  std::map<std::string, std::string> details;
};
HttpResponse error_response(const Error& error, const ErrorAnswer& answer);
// What stands under "error" there, for answers that hold more than one outcome.
boost::json::object error_object(const Error& error, const ErrorAnswer& answer = {});
HttpResponse json_response(int status, std::string json);

}  // namespace dsec::net
