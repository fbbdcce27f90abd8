#include "image/tree_writer.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "sys/file.h"

namespace dsec::image {

namespace {

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::string name_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

Error type_change(const std::string& path) { return invalid_argument(path + ": an earlier entry of this name is of another type"); }

}  // namespace

Result<sys::Fd> TreeWriter::open_directory(const std::string& path) {
  open_how how{};
  how.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV | RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  const int fd = static_cast<int>(::syscall(SYS_openat2, root_.get(), path.empty() ? "." : path.c_str(), &how, sizeof how));
  if (fd >= 0) return sys::Fd(fd);
  switch (errno) {
    case ELOOP: return Error(ErrorCode::kInvalidArgument, path + ": leads through a symbolic link", ELOOP);
    case ENOTDIR: return Error(ErrorCode::kInvalidArgument, path + ": leads through something that is no directory", ENOTDIR);
    case EXDEV: return Error(ErrorCode::kInvalidArgument, path + ": leads out of the tree", EXDEV);
    default: return errno_error("open " + path, errno);
  }
}

Result<int> TreeWriter::open_parent(const std::string& path, std::string& name) {
  const std::string parent = directory_of(path);
  name = name_of(path);
  if (parent.empty()) return root_.get();
  if (cache_holds_ && cached_parent_ == parent) return cached_fd_.get();
  Result<sys::Fd> opened = open_directory(parent);
  if (!opened.ok() && opened.error().error_number() == ENOENT) {
    DSEC_TRY(ensure_directory(parent));
    opened = open_directory(parent);
  }
  if (!opened.ok()) return std::move(opened).error();
  cached_fd_ = std::move(opened).value();
  cached_parent_ = parent;
  cache_holds_ = true;
  return cached_fd_.get();
}

Result<void> TreeWriter::ensure_directory(const std::string& path) {
  if (path.empty()) return {};
  Result<sys::Fd> there = open_directory(path);
  if (there.ok()) return {};
  if (there.error().error_number() != ENOENT) return std::move(there).error();
  std::string name;
  DSEC_ASSIGN(const int parent, open_parent(path, name));
  if (::mkdirat(parent, name.c_str(), 0700) != 0) return errno == EEXIST ? type_change(path) : errno_error("make directory " + path, errno);
  implied_directories_++;
  return {};
}

Result<void> TreeWriter::clear(int parent, const std::string& name, const std::string& path) {
  if (::unlinkat(parent, name.c_str(), 0) == 0 || errno == ENOENT) return {};
  if (errno != EISDIR) return errno_error("replace " + path, errno);
  return type_change(path);
}

Result<void> TreeWriter::make_directory(const std::string& path, const erofs::EntryMeta&) {
  std::string name;
  DSEC_ASSIGN(const int parent, open_parent(path, name));
  if (::mkdirat(parent, name.c_str(), 0700) == 0) return {};
  if (errno != EEXIST) return errno_error("make directory " + path, errno);
  struct stat st{};
  if (::fstatat(parent, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return errno_error("stat " + path, errno);
  if (!S_ISDIR(st.st_mode)) return type_change(path);
  return {};
}

Result<void> TreeWriter::begin_file(const std::string& path, const erofs::EntryMeta&, const erofs::FileShape&) {
  std::string name;
  DSEC_ASSIGN(const int parent, open_parent(path, name));
  DSEC_TRY(clear(parent, name, path));
  DSEC_ASSIGN(file_, sys::open_at(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0600).within("make " + path));
  position_ = 0;
  return {};
}

Result<void> TreeWriter::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(position_));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("write a file", errno);
    bytes.remove_prefix(static_cast<std::size_t>(n));
    position_ += static_cast<std::uint64_t>(n);
  }
  return {};
}

Result<void> TreeWriter::skip(std::uint64_t bytes) {
  position_ += bytes;
  return {};
}

Result<void> TreeWriter::finish_file() {
  if (::ftruncate(file_.get(), static_cast<off_t>(position_)) != 0) return errno_error("size a file", errno);
  file_.reset();
  return {};
}

Result<void> TreeWriter::make_symlink(const std::string& path, const std::string& target, const erofs::EntryMeta&) {
  if (target.empty()) return invalid_argument(path + ": a symbolic link without a target");
  std::string name;
  DSEC_ASSIGN(const int parent, open_parent(path, name));
  DSEC_TRY(clear(parent, name, path));
  if (::symlinkat(target.c_str(), parent, name.c_str()) != 0) return errno == ENAMETOOLONG ? invalid_argument(path + ": a symbolic link's target is too long") : errno_error("make link " + path, errno);
  return {};
}

Result<void> TreeWriter::make_hard_link(const std::string& path, const std::string& target) {
  if (target.empty()) return invalid_argument(path + ": a hard link to the root");
  if (path == target) return invalid_argument(path + ": a hard link to itself");
  DSEC_ASSIGN(const sys::Fd from, open_directory(directory_of(target)));
  const std::string from_name = name_of(target);
  struct stat st{};
  if (::fstatat(from.get(), from_name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno == ENOENT) return invalid_argument(path + ": a hard link to an entry that is not there");
    return errno_error("stat " + target, errno);
  }
  if (S_ISDIR(st.st_mode)) return invalid_argument(path + ": a hard link to a directory");
  std::string name;
  DSEC_ASSIGN(const int parent, open_parent(path, name));
  struct stat there{};
  const bool same = ::fstatat(parent, name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 && there.st_ino == st.st_ino && there.st_dev == st.st_dev;
  if (same) return {};
  DSEC_TRY(clear(parent, name, path));
  if (::linkat(from.get(), from_name.c_str(), parent, name.c_str(), 0) != 0) return errno_error("link " + path, errno);
  return {};
}

// No blob of an image is one.
Result<void> TreeWriter::make_fifo(const std::string& path, const erofs::EntryMeta&) { return invalid_argument(path + ": a fifo in an image archive"); }
Result<void> TreeWriter::make_whiteout(const std::string& path) { return invalid_argument(path + ": a whiteout in an image archive"); }
Result<void> TreeWriter::make_opaque(const std::string& path) { return invalid_argument(path + ": a whiteout in an image archive"); }

}  // namespace dsec::image
