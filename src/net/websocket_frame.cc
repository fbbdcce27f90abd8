#include "net/websocket_frame.h"

#include <openssl/evp.h>

#include "base/encoding.h"

namespace dsec::net {

Result<std::optional<WebSocketFrameHeader>> parse_frame_header(std::string_view bytes, WebSocketSide side) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  if (bytes.size() < 2) return std::optional<WebSocketFrameHeader>();
  WebSocketFrameHeader header;
  header.final = (byte(0) & 0x80) != 0;
  if (byte(0) & 0x70) return invalid_argument("a reserved bit is set");
  const int opcode = byte(0) & 0x0f;
  if (opcode > 10 || (opcode > 2 && opcode < 8)) return invalid_argument("an unknown opcode");
  header.opcode = static_cast<WebSocketOpcode>(opcode);
  header.masked = (byte(1) & 0x80) != 0;
  if (header.masked != (side == WebSocketSide::kServer)) return invalid_argument("a wrong mask bit");
  header.length = byte(1) & 0x7f;
  if (header.control() && (!header.final || header.length > 125)) return invalid_argument("a long or fragmented control frame");
  std::size_t at = 2;
  if (header.length >= 126) {
    const std::size_t wide = header.length == 126 ? 2 : 8;
    if (bytes.size() < at + wide) return std::optional<WebSocketFrameHeader>();
    header.length = 0;
    for (std::size_t i = 0; i < wide; ++i) header.length = header.length << 8 | byte(at + i);
    at += wide;
    if (header.length < (wide == 2 ? 126U : 65536U) || header.length >> 63) return invalid_argument("a length that is not minimal");
  }
  if (header.masked) {
    if (bytes.size() < at + 4) return std::optional<WebSocketFrameHeader>();
    for (std::size_t i = 0; i < 4; ++i) header.mask[i] = byte(at + i);
    at += 4;
  }
  header.header_bytes = at;
  return std::optional(header);
}

std::string frame_header(bool final, WebSocketOpcode opcode, std::uint64_t length, const std::array<unsigned char, 4>* mask) {
  std::string out;
  out.push_back(static_cast<char>((final ? 0x80 : 0) | static_cast<int>(opcode)));
  const int mask_bit = mask ? 0x80 : 0;
  const auto put = [&](std::uint64_t value, int bytes) {
    for (int i = bytes - 1; i >= 0; --i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  };
  if (length < 126) {
    out.push_back(static_cast<char>(mask_bit | static_cast<int>(length)));
  } else if (length < 65536) {
    out.push_back(static_cast<char>(mask_bit | 126));
    put(length, 2);
  } else {
    out.push_back(static_cast<char>(mask_bit | 127));
    put(length, 8);
  }
  if (mask) out.append(mask->begin(), mask->end());
  return out;
}

void apply_mask(std::span<char> bytes, const std::array<unsigned char, 4>& mask, std::size_t phase) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(bytes[i] ^ static_cast<char>(mask[(phase + i) & 3]));
}

bool is_close_code(std::uint16_t code) {
  return (code >= 1000 && code <= 1014 && code != 1004 && code != 1005 && code != 1006) || (code >= 3000 && code <= 4999);
}

std::string websocket_accept_key(std::string_view key) {
  const std::string text = std::string(key) + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
  std::array<char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  DSEC_CHECK(EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(digest.data()), &size, EVP_sha1(), nullptr) == 1);
  return to_base64({digest.data(), size});
}

}  // namespace dsec::net
