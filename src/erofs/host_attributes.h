// What a file of this host says of itself, as an image holds it.
#pragma once

#include <sys/stat.h>

#include "base/result.h"
#include "erofs/directory_input.h"
#include "erofs/entry.h"

namespace dsec::erofs {

struct HostEntry {
  EntryMeta meta;
  bool opaque = false;  // by overlayfs's mark, which an upper may have
};

// Type, mode, owner and time.
Result<EntryMeta> meta_of(const struct stat& st, const std::vector<IdRange>& ids);
// With attributes, of an open file or directory.
Result<HostEntry> describe(int fd, const struct stat& st, const DirectoryInputOptions& options, DirectoryInputCounts& counts);

}  // namespace dsec::erofs
