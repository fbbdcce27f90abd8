#include "net/stream_websocket.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/encoding.h"

namespace dsec::net {

namespace {
Error closed(std::string_view why) { return Error(ErrorCode::kCancelled, "the WebSocket is closed: " + std::string(why)); }

// True for the length of a scope, also when a coroutine is destroyed inside it.
class Flag {
 public:
  explicit Flag(bool& flag) : flag_(flag) { flag_ = true; }
  ~Flag() { flag_ = false; }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

 private:
  bool& flag_;
};
}  // namespace

StreamWebSocket::StreamWebSocket(Socket socket, std::string already_read)
    : socket_(std::move(socket)), buffer_(std::move(already_read)), free_(socket_.get_executor()) {
  free_.expires_at(asio::steady_timer::time_point::max());
}

void StreamWebSocket::abort() {
  broken_ = true;
  boost::system::error_code ignored;
  socket_.close(ignored);
  free_.cancel();
}

asio::awaitable<Result<void>> StreamWebSocket::send(WebSocketOpcode opcode, std::string_view bytes) {
  // Frames must not mix: an answer to a ping waits for the message before it.
  while (writing_) co_await free_.async_wait(asio::as_tuple(asio::use_awaitable));
  if (broken_ || close_sent_) co_return closed("no more may be sent");
  {
    const Flag flag(writing_);
    if (opcode == WebSocketOpcode::kClose) close_sent_ = true;
    // Until all is written; a writer that is cancelled in the middle leaves half a frame.
    broken_ = true;
    const Result<void> written = co_await write_parts(socket_, {frame_header(true, opcode, bytes.size(), nullptr), bytes, {}});
    if (!written.ok()) {
      free_.cancel();
      co_return closed(written.error().message());
    }
    broken_ = !socket_.is_open();
  }
  free_.cancel();
  co_return Result<void>{};
}

asio::awaitable<Result<void>> StreamWebSocket::write(bool text, std::string_view bytes) {
  co_return co_await send(text ? WebSocketOpcode::kText : WebSocketOpcode::kBinary, bytes);
}

asio::awaitable<Error> StreamWebSocket::fail(std::uint16_t code, std::string_view reason) {
  co_await close(code, reason);
  co_return closed(reason);
}

asio::awaitable<Result<void>> StreamWebSocket::need(std::size_t bytes) {
  constexpr std::size_t kPart = 16 << 10;
  while (buffer_.size() < bytes) {
    const std::size_t before = buffer_.size();
    buffer_.resize(std::max(bytes, before + kPart));
    Result<std::size_t> n = co_await read_available(socket_, std::span<char>(buffer_).subspan(before));
    buffer_.resize(before + (n.ok() ? *n : 0));
    if (!n.ok()) co_return closed(n.error().message());
    if (*n == 0) co_return closed("the peer went away");
  }
  co_return Result<void>{};
}

asio::awaitable<Result<WebSocket::Message>> StreamWebSocket::read() {
  const Flag flag(reading_);
  Message message;
  bool started = false;
  while (true) {
    Result<std::optional<WebSocketFrameHeader>> header = parse_frame_header(buffer_, WebSocketSide::kServer);
    if (!header.ok()) co_return co_await fail(1002, header.error().message());
    if (!*header) {
      DSEC_CO_TRY(co_await need(buffer_.size() + 1));
      continue;
    }
    const WebSocketFrameHeader frame = **header;
    if (frame.length + message.bytes.size() > kMaxMessage) co_return co_await fail(1009, "a message is larger than 1 MiB");
    if (!frame.control() && started != (frame.opcode == WebSocketOpcode::kContinuation))
      co_return co_await fail(1002, "a fragment out of order");
    DSEC_CO_TRY(co_await need(frame.header_bytes + frame.length));
    std::string payload = buffer_.substr(frame.header_bytes, frame.length);
    buffer_.erase(0, frame.header_bytes + frame.length);
    if (frame.masked) apply_mask(payload, frame.mask, 0);
    switch (frame.opcode) {
      case WebSocketOpcode::kPing:
        DSEC_CO_TRY(co_await send(WebSocketOpcode::kPong, payload));
        continue;
      case WebSocketOpcode::kPong:
        continue;
      case WebSocketOpcode::kClose: {
        // The same code goes back; then the server side ends the connection.
        (void)co_await send(WebSocketOpcode::kClose, payload.size() < 2 ? std::string_view() : std::string_view(payload).substr(0, 2));
        abort();
        co_return closed("by the peer");
      }
      case WebSocketOpcode::kText:
      case WebSocketOpcode::kBinary:
        message.text = frame.opcode == WebSocketOpcode::kText;
        started = true;
        break;
      case WebSocketOpcode::kContinuation:
        break;
    }
    if (message.bytes.empty())
      message.bytes = std::move(payload);
    else
      message.bytes.append(payload);
    if (!frame.final) continue;
    if (message.text && !is_utf8(message.bytes)) co_return co_await fail(1007, "a text message is not UTF-8");
    if (buffer_.empty() && buffer_.capacity() > (64 << 10)) buffer_ = {};
    co_return std::move(message);
  }
}

asio::awaitable<void> StreamWebSocket::close(std::uint16_t code, std::string_view reason) {
  if (!close_sent_ && !broken_) {
    std::string payload{static_cast<char>(code >> 8), static_cast<char>(code & 0xff)};
    payload.append(reason.substr(0, 123));
    (void)co_await send(WebSocketOpcode::kClose, payload);
  }
  if (broken_ || !socket_.is_open()) co_return;
  co_await close_lingering(socket_);
  abort();
}

}  // namespace dsec::net
