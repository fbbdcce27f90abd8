// The mount API by descriptors (fsopen, fsmount, open_tree, …), as Results.
//
// A mount made here is detached: it lives as long as its descriptor, and nobody
// sees it until it is attached. The plain calls of <sys/mount.h> are used
// directly where a child that shares memory must not allocate.
#pragma once

#include <sys/mount.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/result.h"
#include "sys/fd.h"

namespace dsec::sys {

// One filesystem in the making: open, set parameters, then mount() once.
class FilesystemContext {
 public:
  static Result<FilesystemContext> open(const char* type);
  Result<void> set(const char* key, const std::string& value);
  Result<void> set_flag(const char* key);
  Result<void> set_fd(const char* key, int fd);
  // Creates the superblock and mounts it; attributes are MOUNT_ATTR_*.
  Result<Fd> mount(unsigned attributes);

 private:
  explicit FilesystemContext(Fd fd, const char* type) : fd_(std::move(fd)), type_(type) {}
  // errno with what the kernel wrote into the context's log, which says more.
  Error failure(const std::string& doing) const;

  Fd fd_;
  const char* type_;
};

// A new detached mount of what `fd` (and `path` below it) stands on; flags are
// AT_RECURSIVE or 0.
Result<Fd> clone_mount(int fd, const char* path = "", unsigned flags = 0);
// Sets attributes (MOUNT_ATTR_*) of a mount; AT_RECURSIVE in flags for all below.
Result<void> set_mount_attributes(int mount, std::uint64_t set, unsigned flags = 0);
// Changes one parameter of the superblock of a mount.
Result<void> reconfigure_mount(int mount, const char* key, const std::string& value);
// Ids on disk are those of `user_namespace`, seen through its map. Only on a
// detached mount, once.
Result<void> idmap_mount(int mount, int user_namespace);

// What names `path` below `dir` on its file system wherever that is mounted, for as
// long as this lives; at most 132 bytes. By such a name and any directory of the
// file system it is opened again, for which the process is host root.
Result<std::string> file_handle(int dir, const char* path);
Result<Fd> open_handle(int on, const std::string& handle, int flags);

// openat2 that stays below `dir`, on its mount, and follows no link at all.
// Returns -1 and errno; allocates nothing. The caller owns the descriptor.
int open_beneath(int dir, const char* path, int flags, mode_t mode = 0);

}  // namespace dsec::sys
