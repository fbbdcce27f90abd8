// The proxy's side of the server behind a port: one connection that is there
// already, one request, bodies streamed both ways.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "net/exchange.h"

namespace dsec::net {

struct ResponseHead {
  int status = 0;
  HeaderList headers;
  std::optional<std::uint64_t> content_length;
  const std::string* header(std::string_view name) const;
};

class UpstreamConnection {
 public:
  // A connected descriptor. Runs on the executor of the calling coroutine.
  static asio::awaitable<Result<std::unique_ptr<UpstreamConnection>>> adopt(sys::Fd fd);
  virtual ~UpstreamConnection() = default;

  virtual asio::awaitable<Result<void>> send_head(RequestHead request) = 0;
  virtual asio::awaitable<Result<void>> write_body(std::string_view bytes) = 0;
  virtual asio::awaitable<Result<void>> end_body() = 0;
  // Skips 1xx, but not 101. kInvalidArgument for what is not HTTP.
  virtual asio::awaitable<Result<ResponseHead>> read_head() = 0;
  virtual asio::awaitable<Result<std::size_t>> read_some(std::span<char> buffer) = 0;  // 0 at the end
  // After a 101: the stream, with what was read behind the head.
  virtual Exchange::RawConnection take() = 0;
  // Makes pending and later calls fail. For deadlines: callable while another coroutine waits.
  virtual void abort() = 0;
};

}  // namespace dsec::net
