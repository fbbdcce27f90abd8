#include "net/websocket_client.h"

#include <utility>

#include "base/random.h"
#include "net/websocket_frame.h"

namespace dsec::net {
namespace {

constexpr std::uint64_t kMaxMessage = 8 << 20;
constexpr std::size_t kMaxUnread = 1 << 20;  // beyond it the server has to wait

Error wrong(const std::string& what) { return Error(ErrorCode::kUnavailable, "the server's WebSocket: " + what); }

}  // namespace

WebSocketClient::WebSocketClient(std::unique_ptr<Wire> wire, std::string already_read) : wire_(std::move(wire)), in_(std::move(already_read)) {}

void WebSocketClient::frame(WebSocketOpcode opcode, std::string_view payload) {
  std::array<unsigned char, 4> mask{};
  SystemRandom().fill({reinterpret_cast<char*>(mask.data()), mask.size()});
  out_ += frame_header(true, opcode, payload.size(), &mask);
  const std::size_t begin = out_.size();
  out_ += payload;
  apply_mask(std::span(out_).subspan(begin), mask, 0);
}

void WebSocketClient::send(bool text, std::string_view bytes) { frame(text ? WebSocketOpcode::kText : WebSocketOpcode::kBinary, bytes); }

void WebSocketClient::close() { frame(WebSocketOpcode::kClose, std::string_view("\x03\xe8", 2)); }

Result<void> WebSocketClient::pump() {
  while (!out_.empty()) {
    DSEC_ASSIGN(const std::size_t put, wire_->try_write(out_));
    if (put == 0) break;
    out_.erase(0, put);
  }
  // A message may be larger than what is read ahead of whole ones.
  const std::size_t most = std::max(kMaxUnread, in_.size() + 1);
  while (in_.size() < most && !lost_) {
    char part[64 << 10];
    auto got = wire_->try_read(part, sizeof part);
    if (!got.ok()) {
      // What came before the loss is still to be read.
      lost_ = std::move(got).error();
      break;
    }
    if (got.value() == 0) break;
    in_.append(part, got.value());
  }
  return {};
}

Result<std::optional<WebSocketClient::Message>> WebSocketClient::next() {
  while (true) {
    if (closed_) return Error(ErrorCode::kCancelled, "the server closed the stream");
    auto header = parse_frame_header(in_, WebSocketSide::kClient);
    if (!header.ok()) return wrong(header.error().message());
    if (*header && (*header)->length + partial_.bytes.size() > kMaxMessage) return Error(ErrorCode::kTooLarge, "the server sent a message above 8 MiB");
    if (!*header || in_.size() < (*header)->header_bytes + (*header)->length) {
      if (lost_) return *lost_;
      return std::optional<Message>{};
    }
    const WebSocketFrameHeader frame = **header;
    std::string payload = in_.substr(frame.header_bytes, frame.length);
    in_.erase(0, frame.header_bytes + frame.length);
    if (frame.opcode == WebSocketOpcode::kClose) closed_ = true;
    if (frame.opcode == WebSocketOpcode::kPing) this->frame(WebSocketOpcode::kPong, payload);
    if (frame.control()) continue;
    if (started_ != (frame.opcode == WebSocketOpcode::kContinuation)) return wrong("a fragment out of order");
    if (!started_) partial_.text = frame.opcode == WebSocketOpcode::kText;
    partial_.bytes += payload;
    started_ = !frame.final;
    if (frame.final) return std::optional<Message>(std::exchange(partial_, {}));
  }
}

Result<WebSocketClient::Message> WebSocketClient::wait(Deadline deadline) {
  while (true) {
    DSEC_TRY(pump());
    DSEC_ASSIGN(auto message, next());
    if (message) return *std::move(message);
    DSEC_TRY(wire_->wait(!out_.empty(), deadline));
  }
}

}  // namespace dsec::net
