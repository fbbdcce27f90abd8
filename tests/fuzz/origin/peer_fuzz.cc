// What a request of another node says of itself, and what an answer is sealed in:
// a signature, a newline, the sealed bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "origin/peer_client.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsec;
  static const origin::FleetKey key = origin::FleetKey::of(std::string(32, 'k')).value();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string_view authorization = text.substr(0, text.find('\n'));
  const std::string_view sealed = text.substr(std::min(text.size(), authorization.size() + 1));
  if (key.check("/v1/chunks/x", authorization, WallTime(std::chrono::seconds(1'800'000'000))).ok()) __builtin_trap();
  if (key.open(sealed, authorization).ok()) __builtin_trap();
  if (key.open(key.seal(sealed, authorization), authorization).value() != sealed) __builtin_trap();
  if (const auto peers = origin::parse_peers(text); peers.ok() && peers->empty()) __builtin_trap();
  return 0;
}
