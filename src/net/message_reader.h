// Reads one HTTP/1.1 message from a socket: its head, then its body in parts.
//
// Internal to net: pulls in Beast's parser. The parser is fed from our own
// buffer, so bytes behind the message stay there for the next one.
#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <optional>

#include "net/stream_socket.h"

namespace dsec::net {

namespace http = boost::beast::http;

// What was read from a connection and not yet used.
class ReadBuffer {
 public:
  explicit ReadBuffer(std::size_t limit) : bytes_(limit) {}
  std::string_view view() const {
    const auto data = bytes_.data();
    return {static_cast<const char*>(data.data()), data.size()};
  }
  bool empty() const { return bytes_.size() == 0; }
  std::size_t room() const { return bytes_.max_size() - bytes_.size(); }
  void consume(std::size_t n) { bytes_.consume(n); }
  void append(std::string_view more) {
    auto space = bytes_.prepare(more.size());
    std::copy(more.begin(), more.end(), static_cast<char*>(space.data()));
    bytes_.commit(more.size());
  }
  // Gives memory back between messages.
  void rest() {
    constexpr std::size_t kKeep = 16 << 10;
    if (empty() && bytes_.capacity() > kKeep) bytes_.shrink_to_fit();
  }
  // Reads what is there, at most `wanted` bytes; 0 at end of file.
  asio::awaitable<Result<std::size_t>> fill(Socket& socket, std::size_t wanted) {
    auto space = bytes_.prepare(std::min(wanted, room()));
    Result<std::size_t> n = co_await read_available(socket, {static_cast<char*>(space.data()), space.size()});
    if (n.ok()) bytes_.commit(*n);
    co_return n;
  }

 private:
  boost::beast::flat_buffer bytes_;
};

template <bool kIsRequest>
class MessageReader {
 public:
  using Parser = http::parser<kIsRequest, http::buffer_body>;

  explicit MessageReader(std::size_t header_limit) {
    parser_.header_limit(static_cast<std::uint32_t>(header_limit));
    parser_.body_limit(boost::none);
    parser_.eager(false);
  }

  Parser& parser() { return parser_; }
  const Parser& parser() const { return parser_; }

  // false: the peer closed before the first byte. kTooLarge, kInvalidArgument
  // for what is no message, kCancelled when the peer went away in the middle.
  asio::awaitable<Result<bool>> read_header(Socket& socket, ReadBuffer& buffer) {
    bool started = false;
    while (true) {
      if (!buffer.empty()) {
        started = true;
        boost::system::error_code ec;
        const std::size_t used = parser_.put(boost::asio::buffer(buffer.view().data(), buffer.view().size()), ec);
        buffer.consume(used);
        if (ec && ec != http::error::need_more) co_return parse_error(ec);
        if (parser_.is_header_done()) co_return true;
      }
      if (buffer.room() == 0) co_return Error(ErrorCode::kTooLarge, "the header is too large");
      DSEC_CO_ASSIGN(const std::size_t n, co_await buffer.fill(socket, 4096));
      if (n == 0 && !started) co_return false;
      if (n == 0) co_return Error(ErrorCode::kCancelled, "the peer closed inside a header");
    }
  }

  // The next part of the body; 0 at its end.
  asio::awaitable<Result<std::size_t>> read_body(Socket& socket, ReadBuffer& buffer, std::span<char> out) {
    if (out.empty()) co_return std::size_t{0};
    auto& body = parser_.get().body();
    body.data = out.data();
    body.size = out.size();
    while (!parser_.is_done() && body.size == out.size()) {
      boost::system::error_code ec;
      if (buffer.empty()) {
        DSEC_CO_ASSIGN(const std::size_t n, co_await buffer.fill(socket, 64 << 10));
        if (n == 0) {
          parser_.put_eof(ec);
          if (ec) co_return Error(ErrorCode::kCancelled, "the peer closed inside a body");
          break;
        }
      }
      const std::size_t used = parser_.put(boost::asio::buffer(buffer.view().data(), buffer.view().size()), ec);
      buffer.consume(used);
      if (ec == http::error::need_buffer) break;
      if (ec && ec != http::error::need_more) co_return parse_error(ec);
      if (ec == http::error::need_more && !buffer.empty() && body.size == out.size() && !parser_.is_done()) {
        // An incomplete chunk header stays in the buffer until more has come.
        if (buffer.room() == 0) co_return Error(ErrorCode::kTooLarge, "a chunk header is too large");
        DSEC_CO_ASSIGN(const std::size_t n, co_await buffer.fill(socket, 64 << 10));
        if (n == 0) co_return Error(ErrorCode::kCancelled, "the peer closed inside a body");
      }
    }
    co_return out.size() - body.size;
  }

  bool body_done() const { return parser_.is_done(); }

 private:
  static Error parse_error(const boost::system::error_code& ec) {
    if (ec == http::error::header_limit || ec == http::error::buffer_overflow)
      return Error(ErrorCode::kTooLarge, "the header is too large");
    return invalid_argument("not a valid HTTP/1.1 message: " + ec.message());
  }

  Parser parser_;
};

}  // namespace dsec::net
