// Which blocks of a layer's data files somebody has read, and when first.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "erofs/image_file.h"

namespace dsec::erofs {

struct TouchedRun {
  std::uint32_t device = 0;  // of the layer's own table, from 1
  BlockRun run;
};

class TouchOrder {
 public:
  static constexpr std::uint32_t kNever = 0xFFFFFFFF;

  // In the order of first touch. A block that stands there twice was touched at the first place.
  explicit TouchOrder(const std::vector<TouchedRun>& runs);

  // For each block of the run its place among all touched ones, or kNever.
  std::vector<std::uint32_t> places(std::uint32_t device, BlockRun run) const;
  std::uint64_t blocks() const { return blocks_; }

 private:
  struct Touched {
    std::uint32_t block;
    std::uint32_t place;
  };
  std::vector<std::vector<Touched>> by_device_;  // by block, each once
  std::uint64_t blocks_ = 0;
};

}  // namespace dsec::erofs
