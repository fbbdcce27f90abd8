#include "erofs/touch_order.h"

#include <algorithm>

namespace dsec::erofs {

TouchOrder::TouchOrder(const std::vector<TouchedRun>& runs) {
  std::uint32_t place = 0;
  for (const TouchedRun& touched : runs) {
    if (by_device_.size() <= touched.device) by_device_.resize(touched.device + 1);
    for (std::uint32_t i = 0; i < touched.run.blocks; i++) by_device_[touched.device].push_back({touched.run.block + i, place++});
  }
  for (std::vector<Touched>& blocks : by_device_) {
    std::sort(blocks.begin(), blocks.end(), [](const Touched& a, const Touched& b) { return std::pair(a.block, a.place) < std::pair(b.block, b.place); });
    blocks.erase(std::unique(blocks.begin(), blocks.end(), [](const Touched& a, const Touched& b) { return a.block == b.block; }), blocks.end());
    blocks_ += blocks.size();
  }
}

std::vector<std::uint32_t> TouchOrder::places(std::uint32_t device, BlockRun run) const {
  std::vector<std::uint32_t> out(run.blocks, kNever);
  if (device >= by_device_.size()) return out;
  const std::vector<Touched>& blocks = by_device_[device];
  auto at = std::partition_point(blocks.begin(), blocks.end(), [&](const Touched& one) { return one.block < run.block; });
  for (; at != blocks.end() && at->block - run.block < run.blocks; ++at) out[at->block - run.block] = at->place;
  return out;
}

}  // namespace dsec::erofs
