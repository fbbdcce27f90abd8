#include "edge/memory_history.h"

#include <algorithm>

namespace dsec::edge {

namespace {

constexpr auto kGrowthWindow = std::chrono::minutes(1);

}  // namespace

void MemoryHistory::add(const backend::MemoryUse& use, Instant now) {
  latest_ = use;
  samples_.push_back({now, use.working_bytes});
  // The oldest that stays is as old as the window, or the first of all.
  while (samples_.size() > 2 && now - samples_[1].at >= kGrowthWindow) samples_.pop_front();
}

std::uint64_t MemoryHistory::grown_bytes() const {
  if (samples_.empty()) return 0;
  std::uint64_t least = latest_.working_bytes;
  for (const Sample& sample : samples_) least = std::min(least, sample.bytes);
  return latest_.working_bytes - least;
}

}  // namespace dsec::edge
