#include "image/mkfs_erofs_builder.h"

#include "image/child_program.h"

namespace dsec::image {

Result<void> MkfsErofsBuilder::build(const BuildRequest& request) {
  DSEC_CHECK(request.identity.size() == 64);
  const std::string& id = request.identity;
  const std::string uuid = id.substr(0, 8) + "-" + id.substr(8, 4) + "-" + id.substr(12, 4) + "-" + id.substr(16, 4) + "-" + id.substr(20, 12);
  // SOURCE_DATE_EPOCH fixes the build time and cuts newer file times down to
  // it, of which there are none: every file keeps its own.
  return run_program({"/usr/bin/mkfs.erofs", "--quiet", "-zlz4", "-U" + uuid, request.output, request.tree},
                     {"SOURCE_DATE_EPOCH=" + std::to_string(request.newest_seconds), "PATH=/usr/bin:/bin"});
}

}  // namespace dsec::image
