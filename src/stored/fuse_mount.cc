#include "stored/fuse_mount.h"

#include <fcntl.h>

#include "sys/file.h"
#include "sys/mounts.h"

namespace dsec::stored {

Result<FuseFilesystem> make_filesystem() {
  FuseFilesystem made;
  DSEC_ASSIGN(made.channel, sys::open_at(AT_FDCWD, "/dev/fuse", O_RDWR));
  DSEC_ASSIGN(sys::FilesystemContext context, sys::FilesystemContext::open("fuse"));
  DSEC_TRY(context.set("source", "dsec-stored"));
  DSEC_TRY(context.set("fd", std::to_string(made.channel.get())));
  DSEC_TRY(context.set("rootmode", "40000"));
  DSEC_TRY(context.set("user_id", "0"));
  DSEC_TRY(context.set("group_id", "0"));
  DSEC_ASSIGN(made.mount, context.mount(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC));
  return made;
}

}  // namespace dsec::stored
