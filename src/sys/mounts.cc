#include "sys/mounts.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>

#include <cerrno>

namespace dsec::sys {

Result<FilesystemContext> FilesystemContext::open(const char* type) {
  Fd fd(::fsopen(type, FSOPEN_CLOEXEC));
  if (!fd) return errno_error(std::string("fsopen ") + type, errno);
  return FilesystemContext(std::move(fd), type);
}

Error FilesystemContext::failure(const std::string& doing) const {
  const int error_number = errno;
  char line[256];
  const ssize_t n = ::read(fd_.get(), line, sizeof line);
  std::string what = std::string(type_) + " " + doing;
  if (n > 2) what += " (" + std::string(line + 2, static_cast<std::size_t>(n - 2 - (line[n - 1] == '\n'))) + ")";
  return errno_error(what, error_number);
}

Result<void> FilesystemContext::set(const char* key, const std::string& value) {
  if (::fsconfig(fd_.get(), FSCONFIG_SET_STRING, key, value.c_str(), 0) < 0) return failure(key);
  return {};
}

Result<void> FilesystemContext::set_flag(const char* key) {
  if (::fsconfig(fd_.get(), FSCONFIG_SET_FLAG, key, nullptr, 0) < 0) return failure(key);
  return {};
}

Result<void> FilesystemContext::set_fd(const char* key, int fd) {
  if (::fsconfig(fd_.get(), FSCONFIG_SET_FD, key, nullptr, fd) < 0) return failure(key);
  return {};
}

Result<Fd> FilesystemContext::mount(unsigned attributes) {
  if (::fsconfig(fd_.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) < 0) return failure("create");
  Fd mounted(::fsmount(fd_.get(), FSMOUNT_CLOEXEC, attributes));
  if (!mounted) return failure("fsmount");
  return mounted;
}

Result<Fd> clone_mount(int fd, const char* path, unsigned flags) {
  Fd tree(::open_tree(fd, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | flags));
  if (!tree) return errno_error(std::string("open_tree ") + path, errno);
  return tree;
}

Result<void> set_mount_attributes(int mount, std::uint64_t set, unsigned flags) {
  mount_attr attributes{};
  attributes.attr_set = set;
  if (::mount_setattr(mount, "", AT_EMPTY_PATH | flags, &attributes, sizeof attributes) < 0)
    return errno_error("mount_setattr", errno);
  return {};
}

Result<void> reconfigure_mount(int mount, const char* key, const std::string& value) {
  const Fd context(::fspick(mount, "", FSPICK_CLOEXEC | FSPICK_EMPTY_PATH));
  if (!context) return errno_error("fspick", errno);
  if (::fsconfig(context.get(), FSCONFIG_SET_STRING, key, value.c_str(), 0) < 0 ||
      ::fsconfig(context.get(), FSCONFIG_CMD_RECONFIGURE, nullptr, nullptr, 0) < 0)
    return errno_error(std::string("set ") + key, errno);
  return {};
}

Result<void> idmap_mount(int mount, int user_namespace) {
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_IDMAP;
  attributes.userns_fd = static_cast<std::uint64_t>(user_namespace);
  if (::mount_setattr(mount, "", AT_EMPTY_PATH, &attributes, sizeof attributes) < 0)
    return errno_error("mount_setattr idmap", errno);
  return {};
}

int open_beneath(int dir, const char* path, int flags, mode_t mode) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags) | O_CLOEXEC;
  how.mode = mode;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV;
  return static_cast<int>(::syscall(SYS_openat2, dir, path, &how, sizeof how));
}

}  // namespace dsec::sys
