#include "stored/pressure.h"

#include <cstdlib>

#include "sys/file.h"

namespace dsec::stored {

namespace {

constexpr auto kFresh = std::chrono::milliseconds(500);
constexpr double kMemoryPercent = 5;
constexpr double kDiskPercent = 40;

}  // namespace

double pressure_of(const std::string& text, const std::string& kind, const std::string& name) {
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (!line.starts_with(kind + " ")) continue;
    const std::size_t at = line.find(" " + name + "=");
    return at == std::string::npos ? 0 : std::strtod(line.c_str() + at + name.size() + 2, nullptr);
  }
  return 0;
}

bool Pressure::high() {
  const std::lock_guard lock(mutex_);
  const Instant now = std::chrono::steady_clock::now();
  if (looked_at_ != Instant{} && now - looked_at_ < kFresh) return high_;
  looked_at_ = now;
  const auto memory = sys::read_file(folder_ + "/memory");
  const auto disks = sys::read_file(folder_ + "/io");
  high_ = (memory.ok() && pressure_of(*memory, "some", "avg10") > kMemoryPercent) || (disks.ok() && pressure_of(*disks, "full", "avg60") > kDiskPercent);
  return high_;
}

}  // namespace dsec::stored
