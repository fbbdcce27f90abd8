// Whether this node has other work than to read ahead.
#pragma once

#include <mutex>
#include <string>

#include "base/clock.h"

namespace dsec::stored {

// Of the kernel's pressure stall information. Safe on any thread.
class Pressure {
 public:
  // `folder` is /proc/pressure, or a test's. A kernel that tells nothing has none.
  explicit Pressure(std::string folder) : folder_(std::move(folder)) {}
  // Tasks wait for memory, or nothing gets on for waiting on disks for a minute
  // now: a cold start waits for its store too, but not for that long.
  bool high();

 private:
  const std::string folder_;
  std::mutex mutex_;  // guards what follows
  bool high_ = false;
  Instant looked_at_{};
};

}  // namespace dsec::stored
