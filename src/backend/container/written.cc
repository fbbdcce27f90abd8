// The upper of a sandbox's overlay, found again.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "backend/container/instance.h"
#include "protocol/agent_descriptors.h"
#include "sys/mounts.h"

namespace dsec::backend::container {

namespace {

// A new mount of an upper in memory. The calling thread ends inside the sandbox's
// mount namespace, where alone its mounts can be cloned.
Result<sys::Fd> enter_and_clone(int pidfd, const std::string& handle) {
  if (::unshare(CLONE_FS) < 0) return errno_error("leave the shared root", errno);
  if (::setns(pidfd, CLONE_NEWNS) < 0) return Error(ErrorCode::kUnavailable, "the sandbox is over", errno);
  // A mount, which nobody inside can move: no link can stand there.
  const sys::Fd shm(::open("/dev/shm", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!shm) return errno_error("open the sandbox's memory", errno);
  DSEC_ASSIGN(const sys::Fd upper, sys::open_handle(shm.get(), handle, O_RDONLY | O_DIRECTORY));
  return sys::clone_mount(upper.get());
}

}  // namespace

Result<sys::Fd> ContainerInstance::mount_of_upper_in_memory() {
  if (record_.upper_handle.empty()) return Error(ErrorCode::kUnsupported, "the sandbox was started by a version that did not note where it writes");
  Result<sys::Fd> made = sys::Fd();
  std::thread([&] { made = enter_and_clone(pidfd_.get(), record_.upper_handle); }).join();
  return made;
}

Result<WrittenTree> ContainerInstance::open_written(const WritableLayer& upper) {
  if (scope_->given_back.load()) return Error(ErrorCode::kConflict, "the sandbox is over");
  if (record_.first_id == 0) return Error(ErrorCode::kUnsupported, "the sandbox was started by a version that did not note its ids");
  WrittenTree out;
  sys::Fd mount;
  if (upper.kind == WritableLayer::Kind::kTmpfs) {
    DSEC_ASSIGN(mount, mount_of_upper_in_memory());
  } else {
    DSEC_ASSIGN(mount, sys::clone_mount(upper.directory_fd, "upper"));
  }
  DSEC_TRY(sys::set_mount_attributes(mount.get(), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC));
  out.directory = sys::Fd(sys::open_beneath(mount.get(), ".", O_RDONLY | O_DIRECTORY));
  if (!out.directory) return errno_error("open what the sandbox has written", errno);
  out.first_id = record_.first_id;
  out.ids = protocol::kPayloadIds;
  return out;
}

// The file system in memory is limited as a whole: what its files, and those of /dev/shm, take.
Result<WrittenSize> ContainerInstance::written_size() {
  if (scope_->given_back.load()) return Error(ErrorCode::kConflict, "the sandbox is over");
  DSEC_ASSIGN(const sys::Fd mount, mount_of_upper_in_memory());
  struct statvfs s {};
  if (::fstatvfs(mount.get(), &s) != 0) return errno_error("read the size of what the sandbox wrote", errno);
  WrittenSize out{.bytes = std::uint64_t{s.f_blocks - s.f_bfree} * s.f_frsize};
  if (s.f_files != 0) out.files = s.f_files - s.f_ffree;
  return out;
}

}  // namespace dsec::backend::container
