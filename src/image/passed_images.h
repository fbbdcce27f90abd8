// Images that a worker was given by descriptor.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "erofs/reader.h"

namespace dsec::image {

// From kFirstPassed on: of each its metadata, and then so many data files.
Result<std::vector<erofs::Reader>> open_passed_images(const std::vector<std::uint64_t>& data_files);

}  // namespace dsec::image
