// How much memory this node has left, and whether somebody waits for it.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace dsec::sys {

struct NodeMemory {
  std::uint64_t total_bytes = 0;
  std::uint64_t available_bytes = 0;  // without swapping
  std::uint64_t free_swap_bytes = 0;
  double stalled_percent = 0;  // of the last 10 s some task waited for memory; 0 where the kernel does not tell
};

// From meminfo and pressure/memory below `proc`: /proc, or a test's. kUnsupported where the first does not tell.
Result<NodeMemory> read_node_memory(const std::string& proc = "/proc");

// The number after `name` in the line of a pressure file that starts with `kind`; 0 when there is none.
double pressure_of(const std::string& text, const std::string& kind, const std::string& name);

}  // namespace dsec::sys
