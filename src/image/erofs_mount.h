// One EROFS image as a detached mount.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "sys/fd.h"

namespace dsec::image {

struct ErofsMount {
  sys::Fd mount;  // detached: read-only, nosuid, nodev
  // False where the kernel has no `directio` for EROFS (before 6.14): the
  // image's pages are then cached twice.
  bool direct_io = true;
};

// `devices`: the data files in the order of the image's device table, or none
// where the image holds everything. Makes a new superblock each time it is
// called: callers keep one for each image.
Result<ErofsMount> mount_erofs(const std::string& image_file, const std::vector<std::string>& devices = {});
// Whether `fd` lies on an EROFS filesystem.
bool is_erofs(int fd);

}  // namespace dsec::image
