#include "edge/egress_tls.h"

#include <cstdint>
#include <optional>

namespace dsec::edge {
namespace {

// Reads big-endian numbers and counted strings; after the first that does not
// fit, everything is empty and ok() is false.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : rest_(bytes) {}
  bool ok() const { return ok_; }
  bool at_end() const { return rest_.empty(); }
  std::uint32_t number(std::size_t width) {
    std::uint32_t value = 0;
    for (const char c : take(width)) value = value << 8 | static_cast<unsigned char>(c);
    return value;
  }
  std::string_view counted(std::size_t width) { return take(number(width)); }
  std::string_view take(std::size_t size) {
    if (!ok_ || size > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const std::string_view out = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return out;
  }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

constexpr char kHandshakeRecord = 22;
constexpr char kClientHelloMessage = 1;
constexpr std::uint32_t kServerNameExtension = 0;
constexpr std::size_t kMaxRecord = 16 << 10;

// The name of a server_name extension: one entry of type host_name.
std::optional<std::string> server_name_of(std::string_view extension) {
  Cursor outer(extension);
  Cursor list(outer.counted(2));
  const std::uint32_t type = list.number(1);
  const std::string_view name = list.counted(2);
  if (!outer.ok() || !outer.at_end() || !list.ok() || !list.at_end() || type != 0 || name.empty()) return std::nullopt;
  return std::string(name);
}

ClientHello parse_body(std::string_view body) {
  ClientHello malformed{.state = ClientHello::State::kMalformed};
  Cursor cursor(body);
  cursor.number(2);   // legacy_version
  cursor.take(32);    // random
  cursor.counted(1);  // legacy_session_id
  cursor.counted(2);  // cipher_suites
  cursor.counted(1);  // legacy_compression_methods
  if (!cursor.ok()) return malformed;
  ClientHello hello{.state = ClientHello::State::kComplete};
  if (cursor.at_end()) return hello;  // no extensions: as old clients may
  Cursor extensions(cursor.counted(2));
  if (!cursor.ok() || !cursor.at_end()) return malformed;
  bool found = false;
  while (!extensions.at_end()) {
    const std::uint32_t type = extensions.number(2);
    const std::string_view content = extensions.counted(2);
    if (!extensions.ok()) return malformed;
    if (type != kServerNameExtension) continue;
    std::optional<std::string> name = server_name_of(content);
    // Two names would leave it to the server which one counts.
    if (found || !name) return malformed;
    found = true;
    hello.server_name = std::move(*name);
  }
  return hello;
}

}  // namespace

ClientHello parse_client_hello(std::string_view bytes) {
  ClientHello incomplete;
  ClientHello malformed{.state = ClientHello::State::kMalformed};
  std::string message;  // the handshake message may be spread over records
  std::string_view rest = bytes;
  for (;;) {
    if (rest.empty()) return incomplete;
    const bool first = rest.size() == bytes.size();
    if (rest[0] != kHandshakeRecord) return first ? ClientHello{.state = ClientHello::State::kNotTls} : malformed;
    if (rest.size() >= 2 && rest[1] != 3) return first ? ClientHello{.state = ClientHello::State::kNotTls} : malformed;
    if (rest.size() < 5) return incomplete;
    const std::size_t length = static_cast<std::size_t>(static_cast<unsigned char>(rest[3])) << 8 | static_cast<unsigned char>(rest[4]);
    if (length == 0 || length > kMaxRecord) return malformed;
    const std::string_view fragment = rest.substr(5, length);
    message.append(fragment);
    if (!message.empty() && message[0] != kClientHelloMessage) return malformed;
    if (message.size() >= 4) {
      Cursor header(std::string_view(message).substr(1, 3));
      const std::size_t size = header.number(3);
      if (size > kMaxClientHello) return malformed;
      if (message.size() >= 4 + size) return parse_body(std::string_view(message).substr(4, size));
    }
    if (fragment.size() < length) return incomplete;
    rest.remove_prefix(5 + length);
  }
}

}  // namespace dsec::edge
