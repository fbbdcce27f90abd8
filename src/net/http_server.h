// The HTTP/1.1 server: listeners, connections, and the answers to what is not HTTP.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>

#include "net/exchange.h"

namespace dsec::net {

class HttpServer {
 public:
  struct Options {
    std::string address = "127.0.0.1";
    std::uint16_t port = 0;  // 0 = any free one
    std::size_t max_connections = 16384;  // one more is answered 429 and closed
    std::size_t max_header_bytes = 64 << 10;
    Duration header_timeout = std::chrono::seconds(30);  // from the first byte of a header to its end; for a part of a body in read_body()
    Duration idle_timeout = std::chrono::seconds(75);    // between requests
  };
  // Each connection is a coroutine on `io`; one thread runs `io`.
  static Result<std::unique_ptr<HttpServer>> listen(asio::io_context& io, Options options, HttpHandler handler);
  // Serves a socket that listens already, TCP or unix; address and port of the options are not used.
  static Result<std::unique_ptr<HttpServer>> serve(asio::io_context& io, sys::Fd listener, Options options, HttpHandler handler);
  // Stops accepting and closes every connection.
  virtual ~HttpServer() = default;
  virtual std::uint16_t port() const = 0;
  virtual std::size_t connections() const = 0;
  // Stops accepting, lets requests in progress finish until the deadline, then closes what is left.
  virtual asio::awaitable<void> drain(Deadline deadline) = 0;
};

}  // namespace dsec::net
