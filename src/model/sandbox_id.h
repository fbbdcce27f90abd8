// The sandbox id: 26 lower-case base32 characters that carry the route (unit,
// node, epoch) and a counter, sealed by one AES-128 block. The two spare bits
// of the text are the generation of the seal key; every other spelling is
// refused. The seal hides topology; it is no authorisation.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace dsec::model {

struct SandboxRoute {
  std::uint16_t unit = 0;
  std::uint16_t node = 0;
  std::uint32_t epoch = 0;    // of the edge's start
  std::uint64_t counter = 0;  // unique within the epoch
  bool operator==(const SandboxRoute&) const = default;
};

class SandboxIdSeal {
 public:
  using Key = std::array<unsigned char, 16>;
  // generation: 0..3
  SandboxIdSeal(const Key& key, int generation);
  std::string seal(const SandboxRoute& route) const;
  // kNotFound for anything that this key did not seal.
  Result<SandboxRoute> open(std::string_view id) const;

 private:
  Key key_;
  int generation_;
};

}  // namespace dsec::model
