#include "cli/websocket_client.h"

#include "base/random.h"

namespace dsec::cli {
namespace {

constexpr std::uint64_t kMaxMessage = 8 << 20;
constexpr std::size_t kMaxUnread = 1 << 20;  // beyond it the server has to wait

}  // namespace

WebSocketClient::WebSocketClient(HttpClient::Upgraded upgraded)
    : wire_(std::move(upgraded.wire)), in_(std::move(upgraded.already_read)) {}

void WebSocketClient::frame(std::uint8_t opcode, std::string_view payload) {
  out_ += static_cast<char>(0x80 | opcode);
  const std::size_t size = payload.size();
  if (size < 126) {
    out_ += static_cast<char>(0x80 | size);
  } else if (size < 65536) {
    out_ += static_cast<char>(0x80 | 126);
    for (int shift = 8; shift >= 0; shift -= 8) out_ += static_cast<char>(size >> shift);
  } else {
    out_ += static_cast<char>(0x80 | 127);
    for (int shift = 56; shift >= 0; shift -= 8) out_ += static_cast<char>(static_cast<std::uint64_t>(size) >> shift);
  }
  SystemRandom random;
  const std::string mask = random.bytes(4);
  out_ += mask;
  for (std::size_t i = 0; i < size; ++i) out_ += static_cast<char>(payload[i] ^ mask[i % 4]);
}

void WebSocketClient::send(bool text, std::string_view bytes) { frame(text ? 1 : 2, bytes); }

void WebSocketClient::close() { frame(8, std::string_view("\x03\xe8", 2)); }

Result<void> WebSocketClient::pump() {
  while (!out_.empty()) {
    DSEC_ASSIGN(const std::size_t put, wire_->try_write(out_));
    if (put == 0) break;
    out_.erase(0, put);
  }
  while (in_.size() < kMaxUnread && !lost_) {
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
    const auto at = [this](std::size_t i) { return static_cast<std::uint64_t>(static_cast<unsigned char>(in_[i])); };
    std::size_t head = 2;
    std::uint64_t size = 0;
    bool whole = in_.size() >= 2;
    if (whole) {
      size = at(1) & 0x7f;
      if (at(1) & 0x80) return Error(ErrorCode::kUnavailable, "the server sent a masked frame");
      if (size >= 126) {
        const std::size_t bytes = size == 126 ? 2 : 8;
        head += bytes;
        whole = in_.size() >= head;
        size = 0;
        for (std::size_t i = 0; whole && i < bytes; ++i) size = (size << 8) | at(2 + i);
      }
      if (size > kMaxMessage) return Error(ErrorCode::kTooLarge, "the server sent a message above 8 MiB");
      whole = whole && in_.size() >= head + size;
    }
    if (!whole) {
      if (lost_) return *lost_;
      return std::optional<Message>{};
    }
    const bool final = (at(0) & 0x80) != 0;
    const auto opcode = static_cast<int>(at(0) & 0x0f);
    std::string payload = in_.substr(head, static_cast<std::size_t>(size));
    in_.erase(0, head + static_cast<std::size_t>(size));
    switch (opcode) {
      case 8:
        closed_ = true;
        continue;
      case 9:
        frame(10, payload);
        continue;
      case 10:
        continue;
      case 1:
      case 2:
        partial_text_ = opcode == 1;
        partial_ = std::move(payload);
        break;
      case 0:
        if (partial_.size() + payload.size() > kMaxMessage) return Error(ErrorCode::kTooLarge, "the server sent a message above 8 MiB");
        partial_ += payload;
        break;
      default:
        return Error(ErrorCode::kUnavailable, "the server sent an unknown frame");
    }
    if (final) return std::optional<Message>(Message{partial_text_, std::exchange(partial_, {})});
  }
}

}  // namespace dsec::cli
