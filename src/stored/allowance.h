// So many bytes a second, at most one second's at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "base/clock.h"

namespace dsec::stored {

// Safe on any thread.
class Allowance {
 public:
  explicit Allowance(std::uint64_t bytes_per_second) : rate_(static_cast<double>(bytes_per_second)), left_(rate_) {}

  // False: not now, and nothing is taken. More than a second's worth is given when all is left.
  bool take(std::uint64_t bytes, Instant now) {
    const std::lock_guard lock(mutex_);
    if (last_ != Instant{}) left_ = std::min(rate_, left_ + rate_ * std::chrono::duration<double>(now - last_).count());
    last_ = now;
    if (left_ < std::min(static_cast<double>(bytes), rate_)) return false;
    left_ -= static_cast<double>(bytes);
    return true;
  }

 private:
  const double rate_;
  std::mutex mutex_;  // guards what follows
  double left_;
  Instant last_{};
};

}  // namespace dsec::stored
