// The server name in the first bytes of a TLS connection.
#pragma once

#include <string>
#include <string_view>

namespace dsec::edge {

// A ClientHello longer than this is not read.
inline constexpr std::size_t kMaxClientHello = 16 << 10;

struct ClientHello {
  enum class State {
    kIncomplete,  // so far it may be one: feed more, from the start
    kNotTls,      // certainly not a TLS handshake record
    kMalformed,   // begins as one and goes wrong, or is too long
    kComplete,
  };
  State state = State::kIncomplete;
  std::string server_name;  // kComplete: as sent; "" = none
};

// `bytes` are those of the connection from its first on. Hostile input: any
// bytes give a state, in time linear in their number.
ClientHello parse_client_hello(std::string_view bytes);

}  // namespace dsec::edge
