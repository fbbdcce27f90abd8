// WebSocket frames (RFC 6455, no extensions). Pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace dsec::net {

enum class WebSocketSide { kServer, kClient };

enum class WebSocketOpcode : std::uint8_t { kContinuation = 0, kText = 1, kBinary = 2, kClose = 8, kPing = 9, kPong = 10 };

struct WebSocketFrameHeader {
  bool final = true;
  WebSocketOpcode opcode = WebSocketOpcode::kBinary;
  bool masked = false;
  std::array<unsigned char, 4> mask{};
  std::uint64_t length = 0;
  std::size_t header_bytes = 0;
  bool control() const { return static_cast<int>(opcode) >= 8; }
};

// nullopt: more bytes are needed. kInvalidArgument for what the peer of `side`
// may not send: reserved bits, unknown opcodes, a wrong mask bit, lengths that
// are not minimal, long or fragmented control frames.
Result<std::optional<WebSocketFrameHeader>> parse_frame_header(std::string_view bytes, WebSocketSide side);
std::string frame_header(bool final, WebSocketOpcode opcode, std::uint64_t length, const std::array<unsigned char, 4>* mask);
// XORs in place; `phase` is how many bytes of the payload went before.
void apply_mask(std::span<char> bytes, const std::array<unsigned char, 4>& mask, std::size_t phase);
// Codes that may stand in a close frame.
bool is_close_code(std::uint16_t code);
// The answer to Sec-WebSocket-Key.
std::string websocket_accept_key(std::string_view key);

}  // namespace dsec::net
