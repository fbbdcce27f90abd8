// Which edge a sandbox goes to: a pure function of what the edges last told.
//
// What they told may be old, so the best of all is the wrong choice: every
// apiserver would take the same one. A few are drawn, the best of those is taken,
// and the edge itself has the last word: it refuses with its own reason.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/result.h"

namespace dsec::placement {

struct EdgeLoad {
  std::string node;
  bool accepting = true;              // false while it stops or drains
  std::vector<std::string> backends;  // that it has
  std::string architecture;           // whose programs it runs, as OCI calls it
  std::uint64_t sandboxes = 0;        // live, those placed and not yet answered among them
  std::uint64_t most_sandboxes = 0;   // 0 = no limit
  std::uint64_t memory_mb = 0;        // promised to them
  std::uint64_t most_memory_mb = 0;   // 0 = no limit
};

struct Demand {
  std::string backend;
  std::uint64_t memory_mb = 0;
  std::string architecture;  // of its layers; "" = any
};

// The index of the chosen edge. kUnsupported: no edge has the backend, or
// none with it runs programs of the architecture.
// kUnavailable: none that has it accepts. Where none has room the least loaded is
// chosen, whose refusal says what is full; a repeated create finds its sandbox there.
Result<std::size_t> place(const std::vector<EdgeLoad>& edges, const Demand& demand, Random& random);

}  // namespace dsec::placement
