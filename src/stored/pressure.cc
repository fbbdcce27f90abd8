#include "stored/pressure.h"

#include "sys/file.h"
#include "sys/node_memory.h"

namespace dsec::stored {

namespace {

constexpr auto kFresh = std::chrono::milliseconds(500);
constexpr double kMemoryPercent = 5;
constexpr double kDiskPercent = 40;

}  // namespace

bool Pressure::high() {
  const std::lock_guard lock(mutex_);
  const Instant now = std::chrono::steady_clock::now();
  if (looked_at_ != Instant{} && now - looked_at_ < kFresh) return high_;
  looked_at_ = now;
  const auto memory = sys::read_file(folder_ + "/memory");
  const auto disks = sys::read_file(folder_ + "/io");
  high_ = (memory.ok() && sys::pressure_of(*memory, "some", "avg10") > kMemoryPercent) || (disks.ok() && sys::pressure_of(*disks, "full", "avg60") > kDiskPercent);
  return high_;
}

}  // namespace dsec::stored
