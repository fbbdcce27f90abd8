// The device table of a metadata file: which data files belong to an image.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace dsec::erofs {

struct Device {
  std::string digest;  // 64 hex digits
  std::uint32_t blocks = 0;
  std::uint64_t bytes() const { return std::uint64_t{blocks} * 4096; }
};

// Reads the front of the file only and believes nothing else of it. Empty for an
// image that is one file. kDataFault when this is no metadata that we know.
Result<std::vector<Device>> read_device_table(int fd);

}  // namespace dsec::erofs
