// What one sandbox held of the node's memory, for the last minute.
#pragma once

#include <cstdint>
#include <deque>

#include "backend/backend.h"
#include "base/clock.h"

namespace dsec::edge {

class MemoryHistory {
 public:
  void add(const backend::MemoryUse& use, Instant now);
  const backend::MemoryUse& latest() const { return latest_; }
  Instant last_at() const { return samples_.empty() ? Instant{} : samples_.back().at; }
  // Over the least of the last minute.
  std::uint64_t grown_bytes() const;

 private:
  struct Sample {
    Instant at;
    std::uint64_t bytes = 0;
  };
  backend::MemoryUse latest_;
  std::deque<Sample> samples_;  // oldest first
};

}  // namespace dsec::edge
