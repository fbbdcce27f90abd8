#include "base/encoding.h"

#include <array>
#include <cstdint>

namespace dsec {
namespace {

constexpr std::string_view kHex = "0123456789abcdef";
constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::string_view kBase32 = "abcdefghijklmnopqrstuvwxyz234567";

// Groups of `bits` bits, most significant first; the last one padded with zeros.
std::string pack(std::string_view bytes, int bits, std::string_view alphabet) {
  std::string out;
  out.reserve(bytes.size() * 8 / bits + 4);
  std::uint32_t window = 0;
  int held = 0;
  for (const unsigned char byte : bytes) {
    window = window << 8 | byte;
    held += 8;
    while (held >= bits) {
      held -= bits;
      out += alphabet[window >> held & ((1u << bits) - 1)];
    }
  }
  if (held > 0) out += alphabet[window << (bits - held) & ((1u << bits) - 1)];
  return out;
}

// The reverse; refuses foreign characters and padding bits that are not zero.
Result<std::string> unpack(std::string_view text, int bits, std::string_view alphabet) {
  std::string out;
  std::uint32_t window = 0;
  int held = 0;
  for (const char c : text) {
    const auto value = alphabet.find(c);
    if (value == std::string_view::npos) return invalid_argument("not a character of the encoding");
    window = window << bits | static_cast<std::uint32_t>(value);
    held += bits;
    if (held >= 8) {
      held -= 8;
      out += static_cast<char>(window >> held & 0xff);
    }
  }
  if (held >= bits || (window & ((1u << held) - 1)) != 0) return invalid_argument("the encoded text is cut");
  return out;
}

// Length of the well-formed sequence at the start of `s`, or 0.
std::size_t utf8_sequence(std::string_view s) {
  const auto at = [&](std::size_t i) { return i < s.size() ? static_cast<unsigned char>(s[i]) : 0u; };
  const auto tail = [&](std::size_t i) { return (at(i) & 0xc0) == 0x80; };
  const unsigned lead = at(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return tail(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    if (!tail(1) || !tail(2)) return 0;
    if (lead == 0xe0 && at(1) < 0xa0) return 0;
    if (lead == 0xed && at(1) > 0x9f) return 0;
    return 3;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    if (!tail(1) || !tail(2) || !tail(3)) return 0;
    if (lead == 0xf0 && at(1) < 0x90) return 0;
    if (lead == 0xf4 && at(1) > 0x8f) return 0;
    return 4;
  }
  return 0;
}

}  // namespace

std::string to_hex(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const unsigned char byte : bytes) {
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
  }
  return out;
}

Result<std::string> from_hex(std::string_view text) {
  if (text.size() % 2 != 0) return invalid_argument("hex text of odd length");
  return unpack(text, 4, kHex);
}

std::string to_base64(std::string_view bytes) {
  std::string out = pack(bytes, 6, kBase64);
  while (out.size() % 4 != 0) out += '=';
  return out;
}

Result<std::string> from_base64(std::string_view text) {
  for (int i = 0; i < 2 && text.ends_with('='); i++) text.remove_suffix(1);
  return unpack(text, 6, kBase64);
}

std::string to_base32(std::string_view bytes) { return pack(bytes, 5, kBase32); }
Result<std::string> from_base32(std::string_view text) { return unpack(text, 5, kBase32); }

std::string to_utf8(std::string_view bytes, bool* lossy) {
  std::string out;
  out.reserve(bytes.size());
  bool lost = false;
  while (!bytes.empty()) {
    const std::size_t n = utf8_sequence(bytes);
    if (n == 0) {
      out += "\xef\xbf\xbd";
      lost = true;
      bytes.remove_prefix(1);
    } else {
      out.append(bytes.substr(0, n));
      bytes.remove_prefix(n);
    }
  }
  if (lossy) *lossy = lost;
  return out;
}

bool is_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t n = utf8_sequence(bytes);
    if (n == 0) return false;
    bytes.remove_prefix(n);
  }
  return true;
}

}  // namespace dsec
