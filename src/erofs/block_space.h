// Room in the metadata file, given out once.
//
// What fits into a block never crosses the end of one: an inline tail must not,
// and small neighbours then come with one read. Gaps are filled by the first later
// item that leaves the least behind, so that little is lost.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "erofs/format.h"

namespace dsec::erofs {

class BlockSpace {
 public:
  // The first bytes of the file are taken.
  explicit BlockSpace(std::uint32_t taken_bytes) { keep_rest(0, taken_bytes); }

  // The offset of `bytes` bytes at a multiple of a slot.
  std::uint64_t place(std::uint64_t bytes) {
    const std::uint64_t slots = (bytes + kSlotBytes - 1) / kSlotBytes;
    for (std::uint64_t free = slots; free <= kSlotsInBlock; free++) {
      if (open_[free].empty()) continue;
      const std::uint64_t offset = open_[free].back();
      open_[free].pop_back();
      keep_rest(offset, slots * kSlotBytes);
      return offset;
    }
    const std::uint64_t offset = std::uint64_t{whole_blocks((slots + kSlotsInBlock - 1) / kSlotsInBlock)} * kBlockBytes;
    keep_rest(offset, slots * kSlotBytes);
    return offset;
  }
  // The first of `count` blocks in a row.
  std::uint64_t whole_blocks(std::uint64_t count) {
    const std::uint64_t first = blocks_;
    blocks_ += count;
    return first;
  }
  std::uint64_t blocks() const { return blocks_; }

 private:
  static constexpr std::uint64_t kSlotsInBlock = kBlockBytes / kSlotBytes;

  void keep_rest(std::uint64_t offset, std::uint64_t taken) {
    const std::uint64_t end = (offset + taken + kSlotBytes - 1) / kSlotBytes * kSlotBytes;
    const std::uint64_t left = (kBlockBytes - end % kBlockBytes) % kBlockBytes;
    if (left != 0) open_[left / kSlotBytes].push_back(end);
  }

  std::array<std::vector<std::uint64_t>, kSlotsInBlock + 1> open_;  // by slots left in a block
  std::uint64_t blocks_ = 1;
};

}  // namespace dsec::erofs
