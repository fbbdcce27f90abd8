#include "image/tree_writer.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>

#include "sys/file.h"

namespace dsec::image {

namespace {

constexpr std::size_t kLongestName = 255;
constexpr std::size_t kLongestPath = 3500;  // leaves room for what mkfs.erofs puts in front, below PATH_MAX
constexpr int kDeepest = 200;

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::string name_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

Error type_change(const std::string& path) { return invalid_argument(path + ": an earlier entry of this name is of another type"); }

timespec time_of(std::int64_t seconds, std::int64_t nanoseconds) {
  return timespec{.tv_sec = seconds, .tv_nsec = static_cast<long>(nanoseconds)};
}

// Ownership first: it clears set-id bits and file capabilities.
Result<void> set_owner_at(int parent, const std::string& name, const EntryMeta& meta) {
  if (meta.uid == 0 && meta.gid == 0) return {};
  if (::fchownat(parent, name.c_str(), meta.uid, meta.gid, AT_SYMLINK_NOFOLLOW) != 0) return errno_error("set the owner of " + name, errno);
  return {};
}

Result<void> set_times_at(int parent, const std::string& name, const EntryMeta& meta) {
  const timespec stamp = time_of(meta.mtime_seconds, meta.mtime_nanoseconds);
  const timespec times[2] = {stamp, stamp};
  if (::utimensat(parent, name.c_str(), times, AT_SYMLINK_NOFOLLOW) != 0) return errno_error("set the time of " + name, errno);
  return {};
}

Result<void> set_attributes(int fd, const EntryMeta& meta) {
  for (const auto& [name, value] : meta.attributes) {
    if (::fsetxattr(fd, name.c_str(), value.data(), value.size(), 0) == 0) continue;
    if (errno == EINVAL || errno == EPERM || errno == ERANGE || errno == E2BIG) return invalid_argument("the kernel refuses the attribute " + name);
    return errno_error("set the attribute " + name, errno);
  }
  return {};
}

}  // namespace

Result<std::string> clean_path(std::string_view raw) {
  if (raw.empty()) return invalid_argument("an entry has no name");
  if (raw.front() == '/') return invalid_argument("an entry's path is absolute");
  if (raw.find('\0') != std::string_view::npos) return invalid_argument("an entry's path holds a NUL");
  std::string out;
  int depth = 0;
  while (!raw.empty()) {
    const std::size_t slash = raw.find('/');
    const std::string_view part = raw.substr(0, slash);
    raw = slash == std::string_view::npos ? std::string_view() : raw.substr(slash + 1);
    if (part.empty() || part == ".") continue;
    if (part == "..") return invalid_argument("an entry's path leads upwards (..)");
    if (part.size() > kLongestName) return invalid_argument("an entry's name is longer than 255 bytes");
    if (++depth > kDeepest) return invalid_argument("an entry lies more than 200 directories deep");
    if (!out.empty()) out += '/';
    out += part;
  }
  if (out.size() > kLongestPath) return invalid_argument("an entry's path is longer than 3500 bytes");
  return out;
}

Result<sys::Fd> TreeWriter::open_directory(const std::string& path) {
  open_how how{};
  how.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV;
  how.resolve |= overlaps_ == Overlaps::kRefuse ? RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS : RESOLVE_IN_ROOT;
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
    DSEC_TRY(ensure_directory(parent, 0755));
    opened = open_directory(parent);
  }
  if (!opened.ok()) return std::move(opened).error();
  cached_fd_ = std::move(opened).value();
  cached_parent_ = parent;
  cache_holds_ = true;
  return cached_fd_.get();
}

Result<void> TreeWriter::ensure_directory(const std::string& path, mode_t mode) {
  if (path.empty()) return {};
  Result<sys::Fd> there = open_directory(path);
  if (there.ok()) return {};
  if (there.error().error_number() != ENOENT) return std::move(there).error();
  std::string name;
  DSEC_ASSIGN(const int parent, open_parent(path, name));
  if (::mkdirat(parent, name.c_str(), mode) != 0) {
    // A link to nowhere has the name.
    if (errno == EEXIST) return type_change(path);
    return errno_error("make directory " + path, errno);
  }
  if (::fchmodat(parent, name.c_str(), mode, 0) != 0) return errno_error("set the mode of " + path, errno);
  directories_.try_emplace(path);
  implied_directories_++;
  return {};
}

Result<void> TreeWriter::clear(int parent, const std::string& name, const std::string& path) {
  if (::unlinkat(parent, name.c_str(), 0) == 0) {
    cache_holds_ = false;  // it may have been a link that the cached path led through
    return {};
  }
  if (errno == ENOENT) return {};
  if (errno != EISDIR) return errno_error("replace " + path, errno);
  if (overlaps_ == Overlaps::kRefuse) return type_change(path);
  return remove(path);
}

Result<void> TreeWriter::make_directory(const std::string& path, const EntryMeta& meta) {
  std::string name;
  DSEC_ASSIGN(const int parent, open_parent(path, name));
  if (::mkdirat(parent, name.c_str(), 0700) != 0) {
    if (errno != EEXIST) return errno_error("make directory " + path, errno);
    struct stat st{};
    if (::fstatat(parent, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return errno_error("stat " + path, errno);
    if (!S_ISDIR(st.st_mode)) {
      if (overlaps_ == Overlaps::kRefuse) return type_change(path);
      DSEC_TRY(clear(parent, name, path));
      if (::mkdirat(parent, name.c_str(), 0700) != 0) return errno_error("make directory " + path, errno);
    }
  }
  DSEC_ASSIGN(const sys::Fd made, sys::open_at(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  if (::fchown(made.get(), meta.uid, meta.gid) != 0) return errno_error("set the owner of " + path, errno);
  if (::fchmod(made.get(), meta.mode) != 0) return errno_error("set the mode of " + path, errno);
  DSEC_TRY(set_attributes(made.get(), meta).within(path));
  directories_[path] = {true, meta.mtime_seconds, meta.mtime_nanoseconds};
  return {};
}

Result<sys::Fd> TreeWriter::begin_file(const std::string& path) {
  std::string name;
  DSEC_ASSIGN(const int parent, open_parent(path, name));
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  int fd = ::openat(parent, name.c_str(), kFlags, 0600);
  if (fd < 0 && errno == EEXIST) {
    DSEC_TRY(clear(parent, name, path));
    fd = ::openat(parent, name.c_str(), kFlags, 0600);
  }
  if (fd < 0) return errno_error("make " + path, errno);
  return sys::Fd(fd);
}

Result<void> TreeWriter::finish_file(const sys::Fd& file, const EntryMeta& meta) {
  if ((meta.uid != 0 || meta.gid != 0) && ::fchown(file.get(), meta.uid, meta.gid) != 0) return errno_error("set the owner of a file", errno);
  if (::fchmod(file.get(), meta.mode) != 0) return errno_error("set the mode of a file", errno);
  DSEC_TRY(set_attributes(file.get(), meta));
  const timespec stamp = time_of(meta.mtime_seconds, meta.mtime_nanoseconds);
  const timespec times[2] = {stamp, stamp};
  if (::futimens(file.get(), times) != 0) return errno_error("set the time of a file", errno);
  return {};
}

Result<void> TreeWriter::make_symlink(const std::string& path, const std::string& target, const EntryMeta& meta) {
  if (target.empty()) return invalid_argument(path + ": a symbolic link without a target");
  if (target.size() > kLongestPath) return invalid_argument(path + ": a symbolic link's target is too long");
  std::string name;
  DSEC_ASSIGN(const int parent, open_parent(path, name));
  DSEC_TRY(clear(parent, name, path));
  if (::symlinkat(target.c_str(), parent, name.c_str()) != 0) return errno_error("make link " + path, errno);
  DSEC_TRY(set_owner_at(parent, name, meta));
  return set_times_at(parent, name, meta);
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

Result<void> TreeWriter::make_fifo(const std::string& path, const EntryMeta& meta) {
  std::string name;
  DSEC_ASSIGN(const int parent, open_parent(path, name));
  DSEC_TRY(clear(parent, name, path));
  if (::mkfifoat(parent, name.c_str(), 0600) != 0) return errno_error("make fifo " + path, errno);
  DSEC_TRY(set_owner_at(parent, name, meta));
  if (::fchmodat(parent, name.c_str(), meta.mode, 0) != 0) return errno_error("set the mode of " + path, errno);
  return set_times_at(parent, name, meta);
}

Result<void> TreeWriter::remove(const std::string& path) {
  DSEC_CHECK(!path.empty());
  cache_holds_ = false;
  Result<sys::Fd> parent = open_directory(directory_of(path));
  if (!parent.ok()) {
    const int error = parent.error().error_number();
    if (error == ENOENT || error == ENOTDIR) return {};
    return std::move(parent).error();
  }
  const std::string below = path + "/";
  directories_.erase(path);
  directories_.erase(directories_.lower_bound(below), directories_.lower_bound(path + "0"));  // '0' follows '/'
  return sys::remove_tree_at(parent->get(), name_of(path));
}

Result<std::vector<std::string>> TreeWriter::names(const std::string& path) {
  std::vector<std::string> out;
  Result<sys::Fd> directory = open_directory(path);
  if (!directory.ok()) {
    const int error = directory.error().error_number();
    if (error == ENOENT || error == ENOTDIR) return out;
    return std::move(directory).error();
  }
  DIR* stream = ::fdopendir(directory->get());
  if (stream == nullptr) return errno_error("read " + path, errno);
  directory->release();
  while (const dirent* entry = ::readdir(stream)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") out.push_back(name);
  }
  ::closedir(stream);
  return out;
}

void TreeWriter::move_to(sys::Fd root) {
  root_ = std::move(root);
  cached_fd_.reset();
  cache_holds_ = false;
}

Result<void> TreeWriter::finish(std::int64_t unstated_seconds) {
  cache_holds_ = false;
  directories_.try_emplace("");
  for (const auto& [path, time] : directories_) {
    Result<sys::Fd> opened = open_directory(path);
    // A link that the path led through has been replaced by a later layer.
    if (!opened.ok() && overlaps_ == Overlaps::kReplace) continue;
    DSEC_ASSIGN(const sys::Fd directory, std::move(opened));
    const timespec stamp = time.stated ? time_of(time.seconds, time.nanoseconds) : time_of(unstated_seconds, 0);
    const timespec times[2] = {stamp, stamp};
    if (::futimens(directory.get(), times) != 0) return errno_error("set the time of " + path, errno);
  }
  return {};
}

}  // namespace dsec::image
