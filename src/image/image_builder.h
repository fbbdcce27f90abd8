// The port to whatever turns a directory tree into an image file.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace dsec::image {

struct BuildRequest {
  std::string tree;      // a directory; owners and modes as the image shall have them
  std::string output;    // made by build(); a part of it may be there after an error
  std::string identity;  // 64 hex digits: names the content, the image's UUID is made from it
  std::int64_t newest_seconds = 0;  // no file of the tree is newer
};

class ImageBuilder {
 public:
  virtual ~ImageBuilder() = default;
  // Equal trees and requests make equal bytes. Blocks until the file is whole.
  virtual Result<void> build(const BuildRequest& request) = 0;
};

}  // namespace dsec::image
