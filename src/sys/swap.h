// Swap of a node's own: a compressed device in memory, a file on disk, or both.
//
// The kernel's lists are the truth of what is on; nothing about it is kept elsewhere. A
// process that dies leaves it on, as its sandboxes do, and the next one finds it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace dsec::sys {

struct SwapWish {
  std::uint64_t zram_bytes = 0;  // of uncompressed pages; 0 = none. Used first
  std::uint64_t file_bytes = 0;  // 0 = none
  std::string directory;         // absolute; the file `swap` and the mark of the device are here
};

struct SwapArea {
  std::string path;
  std::uint64_t bytes = 0;
  std::uint64_t used_bytes = 0;
};

// What is on, whoever's it is. From /proc/swaps.
std::vector<SwapArea> swap_areas(std::string_view proc_swaps);
std::vector<SwapArea> swap_areas();

// Brings what is wished for and not on. One that is on with another size stays as it
// is, and is told of. kUnsupported with the reason where this host or its file system cannot.
Result<std::vector<std::string>> switch_swap_on(const SwapWish& wish);
// Takes off and removes what switch_swap_on() made in this directory. Idempotent. Works for as
// long as what is in it needs to be read back; kExhausted when that does not fit into memory.
Result<void> switch_swap_off(const std::string& directory);

// Bytes of memory that a zram device takes for what is in it; 0 when it is none.
std::uint64_t zram_resident_bytes(const std::string& device);

}  // namespace dsec::sys
