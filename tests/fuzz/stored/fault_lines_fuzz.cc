// A fault log that something else has written into.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "stored/fault_reader.h"

namespace {

// A file without a disk, reached by its descriptor.
const std::string& path_of_log(int& fd) {
  static const int file = ::memfd_create("faults", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(file);
  fd = file;
  return path;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using dsec::stored::FaultReader;
  int fd = -1;
  FaultReader reader(path_of_log(fd));
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, data, size, 0) != static_cast<ssize_t>(size)) return 0;
  const std::size_t lines = static_cast<std::size_t>(std::count(data, data + size, '\n'));
  const auto faults = reader.take_new();
  if (faults.size() > lines) __builtin_trap();
  for (const auto& fault : faults)
    if (fault.data.empty()) __builtin_trap();
  if (!reader.take_new().empty()) __builtin_trap();  // nothing twice
  return 0;
}
