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
    std::size_t max_connections = 16384;
    std::size_t max_header_bytes = 64 << 10;
    Duration header_timeout = std::chrono::seconds(30);
    Duration idle_timeout = std::chrono::seconds(75);
  };
  static Result<std::unique_ptr<HttpServer>> listen(asio::io_context& io, Options options, HttpHandler handler);
  virtual ~HttpServer() = default;
  virtual std::uint16_t port() const = 0;
  // Stops accepting, lets requests in progress finish until the deadline.
  virtual asio::awaitable<void> drain(Deadline deadline) = 0;
};

}  // namespace dsec::net
