// Move: a rename where the kernel can; else (a directory of an image's layer,
// another mount) a copy beside the target that takes its name when it is whole.
#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <memory>

#include "agent/file_verbs.h"
#include "sys/file.h"

namespace dsec::agent {
namespace {

constexpr int kDepthLimit = 256;

Result<void> copy_data(int from, int to, const std::string& name) {
  std::string buffer(protocol::kDataChunk, '\0');
  for (;;) {
    const ssize_t got = ::read(from, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_error(name, errno);
    if (got == 0) return {};
    DSEC_TRY(sys::write_all(to, {buffer.data(), static_cast<std::size_t>(got)}).within(name));
  }
}

void copy_marks(int fd, const struct stat& status) {
  // Before the mode: a change of owner takes the set-user bits away.
  [[maybe_unused]] const int owner = ::fchown(fd, status.st_uid, status.st_gid);
  ::fchmod(fd, status.st_mode & 07777);
  const timespec times[2] = {status.st_atim, status.st_mtim};
  ::futimens(fd, times);
}

Result<void> copy_tree(int from, const std::string& name, int to, const std::string& as, int depth) {
  struct stat status {};
  if (::fstatat(from, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return errno_error(name, errno);
  if (depth > kDepthLimit) return errno_error(name, ENAMETOOLONG);
  if (S_ISLNK(status.st_mode)) {
    char target[PATH_MAX];
    const ssize_t length = ::readlinkat(from, name.c_str(), target, sizeof target);
    if (length < 0) return errno_error(name, errno);
    if (::symlinkat(std::string(target, static_cast<std::size_t>(length)).c_str(), to, as.c_str()) != 0) return errno_error(name, errno);
    [[maybe_unused]] const int owner = ::fchownat(to, as.c_str(), status.st_uid, status.st_gid, AT_SYMLINK_NOFOLLOW);
    return {};
  }
  if (S_ISREG(status.st_mode)) {
    const sys::Fd source(::openat(from, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!source) return errno_error(name, errno);
    const sys::Fd copy(::openat(to, as.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!copy) return errno_error(name, errno);
    DSEC_TRY(copy_data(source.get(), copy.get(), name));
    copy_marks(copy.get(), status);
    return {};
  }
  if (S_ISFIFO(status.st_mode)) return ::mkfifoat(to, as.c_str(), status.st_mode & 07777) == 0 ? Result<void>() : errno_error(name, errno);
  if (!S_ISDIR(status.st_mode)) return errno_error(name, EXDEV);

  sys::Fd source(::openat(from, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!source) return errno_error(name, errno);
  if (::mkdirat(to, as.c_str(), 0700) != 0) return errno_error(name, errno);
  const sys::Fd copy(::openat(to, as.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  DIR* stream = ::fdopendir(source.get());
  if (!copy || stream == nullptr) return errno_error(name, errno);
  const int below = source.release();
  const std::unique_ptr<DIR, int (*)(DIR*)> closer(stream, ::closedir);
  while (const dirent* entry = ::readdir(stream)) {
    const std::string child = entry->d_name;
    if (child != "." && child != "..") DSEC_TRY(copy_tree(below, child, copy.get(), child, depth + 1));
  }
  copy_marks(copy.get(), status);
  return {};
}

Result<void> copy_then_remove(const Location& from, const Location& to) {
  DSEC_ASSIGN(const sys::Fd source, sys::open_at(from.directory.get(), ".", O_RDONLY | O_DIRECTORY));
  DSEC_ASSIGN(const sys::Fd target, sys::open_at(to.directory.get(), ".", O_RDONLY | O_DIRECTORY));
  const std::string name = temporary_name();
  auto moved = copy_tree(source.get(), from.name, target.get(), name, 0);
  if (moved.ok() && ::renameat(target.get(), name.c_str(), target.get(), to.name.c_str()) != 0) moved = errno_error(to.name, errno);
  if (!moved.ok()) {
    (void)sys::remove_tree_at(target.get(), name).ok();
    return moved;
  }
  return sys::remove_tree_at(source.get(), from.name);
}

}  // namespace

std::string temporary_name() {
  unsigned char random[8] = {};
  [[maybe_unused]] const auto got = ::getrandom(random, sizeof random, 0);
  std::string name = ".dsec-";
  for (const unsigned char byte : random) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

Result<protocol::FileReply> serve_move(const protocol::FileRequest& request) {
  DSEC_ASSIGN(const Location from, locate(request.path, false));
  DSEC_ASSIGN(const Location to, locate(request.target, request.parents));
  if (from.name.empty() || to.name.empty()) return errno_error("/", EBUSY);
  // The kernel refuses this of a rename; a copy would never end.
  if (request.target.starts_with(request.path + "/")) return errno_error(request.target, EINVAL);
  if (::renameat(from.directory.get(), from.name.c_str(), to.directory.get(), to.name.c_str()) != 0) {
    if (errno != EXDEV) return errno_error(request.path, errno);
    DSEC_TRY(copy_then_remove(from, to).within(request.path));
  }
  DSEC_ASSIGN(protocol::FileInfo info, file_info_at(to.directory.get(), to.name, request.target, IdNames()));
  return protocol::FileReply{.entries = {std::move(info)}};
}

}  // namespace dsec::agent
