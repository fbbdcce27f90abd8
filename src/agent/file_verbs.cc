#include "agent/file_verbs.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <memory>

#include "agent/command_plan.h"
#include "sys/file.h"

namespace dsec::agent {
namespace {

using protocol::FileInfo;
using protocol::FileReply;
using protocol::FileRequest;
using protocol::FileType;

constexpr std::uint32_t kDefaultListLimit = 10'000;
constexpr std::size_t kReplyBytes = 24 << 10;
constexpr int kDepthLimit = 256;

FileType type_of(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFDIR: return FileType::kDirectory;
    case S_IFLNK: return FileType::kSymlink;
    case S_IFIFO: return FileType::kFifo;
    case S_IFSOCK: return FileType::kSocket;
    case S_IFBLK:
    case S_IFCHR: return FileType::kDevice;
    default: return FileType::kFile;
  }
}

// Entries leave in replies of bounded size; what is left goes with the last one.
class EntryBatch {
 public:
  explicit EntryBatch(WorkerChannel& channel) : channel_(channel) {}
  void add(FileInfo info) {
    const std::size_t size = info.path.size() + info.user.size() + info.group.size() + info.target.size() + 64;
    if (bytes_ + size > kReplyBytes && !entries_.empty()) {
      channel_.reply({.more = true, .entries = std::move(entries_)});
      entries_ = {};
      bytes_ = 0;
    }
    bytes_ += size;
    entries_.push_back(std::move(info));
  }
  std::vector<FileInfo> take() { return std::move(entries_); }

 private:
  WorkerChannel& channel_;
  std::vector<FileInfo> entries_;
  std::size_t bytes_ = 0;
};

struct Listing {
  EntryBatch& batch;
  const IdNames& names;
  bool recursive;
  std::uint32_t left;
  bool truncated = false;
};

Result<void> list_directory(sys::Fd directory, const std::string& path, int depth, Listing& listing) {
  DIR* stream = ::fdopendir(directory.get());
  if (stream == nullptr) return errno_error(path, errno);
  const int fd = directory.release();
  const std::unique_ptr<DIR, int (*)(DIR*)> closer(stream, ::closedir);

  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(stream)) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (names.size() >= listing.left) {
      listing.truncated = true;
      break;
    }
    names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (listing.left == 0) {
      listing.truncated = true;
      return {};
    }
    auto info = file_info_at(fd, name, join_path(path, name), listing.names);
    if (!info.ok()) continue;  // gone meanwhile
    --listing.left;
    const bool descend = listing.recursive && info->type == FileType::kDirectory;
    const std::string child = info->path;
    listing.batch.add(std::move(*info));
    if (!descend) continue;
    if (depth >= kDepthLimit) {
      listing.truncated = true;
      continue;
    }
    sys::Fd below(::openat(fd, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (below.valid()) DSEC_TRY(list_directory(std::move(below), child, depth + 1, listing));
  }
  return {};
}

// A process that answers for others does not show its own memory.
Result<void> refuse_own_process(int fd, const std::string& path) {
  struct statfs status {};
  if (::fstatfs(fd, &status) != 0 || status.f_type != PROC_SUPER_MAGIC) return {};
  char name[PATH_MAX];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(link.c_str(), name, sizeof name);
  const std::string own = "/proc/" + std::to_string(::getpid()) + "/";
  if (length > 0 && std::string_view(name, static_cast<std::size_t>(length)).starts_with(own)) return errno_error(path, EACCES);
  return {};
}

}  // namespace

Result<sys::Fd> open_path(const std::string& path, int flags) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_NO_MAGICLINKS;
  sys::Fd fd(static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, path.c_str(), &how, sizeof how)));
  if (!fd) return errno_error(path, errno);
  return fd;
}

Result<sys::Fd> open_regular(const std::string& path, int flags) {
  // What it is comes before what opening it would do.
  DSEC_ASSIGN(const sys::Fd found, open_path(path, O_PATH));
  struct stat status {};
  if (::fstat(found.get(), &status) != 0) return errno_error(path, errno);
  if (S_ISDIR(status.st_mode)) return errno_error(path, EISDIR);
  if (!S_ISREG(status.st_mode)) return Error(ErrorCode::kInvalidArgument, path + ": not a regular file", EINVAL);
  DSEC_ASSIGN(sys::Fd fd, open_path(path, flags | O_NONBLOCK | O_NOCTTY));
  if (::fstat(fd.get(), &status) != 0) return errno_error(path, errno);
  if (!S_ISREG(status.st_mode)) return Error(ErrorCode::kInvalidArgument, path + ": not a regular file", EINVAL);
  DSEC_TRY(refuse_own_process(fd.get(), path));
  return fd;
}

Result<Location> locate(const std::string& path, bool make_parents) {
  std::string_view rest = path;
  while (rest.size() > 1 && rest.ends_with('/')) rest.remove_suffix(1);
  if (rest == "/") {
    DSEC_ASSIGN(sys::Fd root, open_path("/", O_PATH | O_DIRECTORY));
    return Location{std::move(root), ""};
  }
  const std::size_t slash = rest.rfind('/');
  const std::string parent(slash == 0 ? "/" : rest.substr(0, slash));
  std::string name(rest.substr(slash + 1));
  if (name == "." || name == "..") return Error(ErrorCode::kInvalidArgument, path + ": the last part is no name", EINVAL);
  auto directory = open_path(parent, O_PATH | O_DIRECTORY);
  if (!directory.ok() && directory.error().error_number() == ENOENT && make_parents) {
    DSEC_TRY(make_directories_for_user(parent, 0755));
    directory = open_path(parent, O_PATH | O_DIRECTORY);
  }
  if (!directory.ok()) return std::move(directory).error();
  return Location{std::move(*directory), std::move(name)};
}

Result<void> make_directories_for_user(const std::string& path, mode_t mode) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), mode) != 0 && errno != EEXIST) {
      const int error = errno;
      struct stat status {};
      if (::stat(part.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return errno_error(part, error);
    }
    if (end == std::string::npos) break;
  }
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return errno_error(path, errno);
  if (!S_ISDIR(status.st_mode)) return errno_error(path, ENOTDIR);
  return {};
}

FileInfo file_info(std::string path, const struct stat& status, const IdNames& names) {
  return {.path = std::move(path),
          .type = type_of(status.st_mode),
          .size = static_cast<std::uint64_t>(status.st_size),
          .mode = status.st_mode & 07777,
          .uid = status.st_uid,
          .gid = status.st_gid,
          .mtime_ns = status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec,
          .user = names.user(status.st_uid),
          .group = names.group(status.st_gid)};
}

Result<FileInfo> file_info_at(int directory, const std::string& name, std::string path, const IdNames& names) {
  struct stat status {};
  const int flags = AT_SYMLINK_NOFOLLOW | (name.empty() ? AT_EMPTY_PATH : 0);
  if (::fstatat(directory, name.c_str(), &status, flags) != 0) return errno_error(path, errno);
  FileInfo info = file_info(std::move(path), status, names);
  if (info.type == FileType::kSymlink) {
    char target[PATH_MAX];
    const ssize_t length = ::readlinkat(directory, name.c_str(), target, sizeof target);
    if (length > 0) info.target.assign(target, static_cast<std::size_t>(length));
  }
  return info;
}

Result<FileReply> serve_stat(const FileRequest& request) {
  DSEC_ASSIGN(const Location at, locate(request.path, false));
  DSEC_ASSIGN(FileInfo info, file_info_at(at.directory.get(), at.name, request.path, IdNames()));
  return FileReply{.entries = {std::move(info)}};
}

Result<FileReply> serve_list(const FileRequest& request, WorkerChannel& channel) {
  DSEC_ASSIGN(sys::Fd directory, open_path(request.path, O_RDONLY | O_DIRECTORY | O_NONBLOCK));
  const IdNames names;
  EntryBatch batch(channel);
  Listing listing{.batch = batch, .names = names, .recursive = request.recursive, .left = request.limit != 0 ? request.limit : kDefaultListLimit};
  DSEC_TRY(list_directory(std::move(directory), request.path, 0, listing));
  return FileReply{.entries = batch.take(), .truncated = listing.truncated};
}

Result<FileReply> serve_read(const FileRequest& request, WorkerChannel& channel) {
  DSEC_ASSIGN(const sys::Fd fd, open_regular(request.path, O_RDONLY));
  if (request.offset > 0 && ::lseek(fd.get(), static_cast<off_t>(request.offset), SEEK_SET) < 0) return errno_error(request.path, errno);
  std::uint64_t left = request.length != 0 ? request.length : ~std::uint64_t{0};
  std::string buffer(protocol::kDataChunk, '\0');
  while (left > 0) {
    const ssize_t got = ::read(fd.get(), buffer.data(), std::min<std::uint64_t>(left, buffer.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_error(request.path, errno);
    if (got == 0) break;
    channel.send_data({buffer.data(), static_cast<std::size_t>(got)});
    left -= static_cast<std::uint64_t>(got);
  }
  channel.end_data();
  return FileReply{};
}

Result<FileReply> serve_make_directory(const FileRequest& request) {
  const mode_t mode = request.mode != 0 ? request.mode & 07777 : 0755;
  if (request.parents) {
    DSEC_TRY(make_directories_for_user(request.path, mode));
  } else {
    DSEC_ASSIGN(const Location at, locate(request.path, false));
    if (at.name.empty() || ::mkdirat(at.directory.get(), at.name.c_str(), mode) != 0) {
      return errno_error(request.path, at.name.empty() ? EEXIST : errno);
    }
  }
  return serve_stat(request);
}

Result<FileReply> serve_remove(const FileRequest& request) {
  DSEC_ASSIGN(const Location at, locate(request.path, false));
  if (at.name.empty()) return errno_error("/", EBUSY);
  struct stat status {};
  if (::fstatat(at.directory.get(), at.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return errno_error(request.path, errno);
  if (S_ISDIR(status.st_mode) && request.recursive) {
    // Needs a descriptor that reads: O_PATH names the place only.
    DSEC_ASSIGN(const sys::Fd parent, sys::open_at(at.directory.get(), ".", O_RDONLY | O_DIRECTORY));
    DSEC_TRY(sys::remove_tree_at(parent.get(), at.name));
  } else if (::unlinkat(at.directory.get(), at.name.c_str(), S_ISDIR(status.st_mode) ? AT_REMOVEDIR : 0) != 0) {
    return errno_error(request.path, errno);
  }
  return FileReply{};
}

void serve_file_request(const FileRequest& original, const Account& account, WorkerChannel& channel) {
  FileRequest request = original;
  // The chroot of the sandbox is this process's root: no path leads out of it.
  request.path = join_path(account.home, request.path.empty() ? "." : request.path);
  if (!request.target.empty()) request.target = join_path(account.home, request.target);
  if (request.path.find('\0') != std::string::npos || request.target.find('\0') != std::string::npos) {
    return channel.finish(EINVAL, "a path holds a NUL byte");
  }

  auto result = [&]() -> Result<FileReply> {
    switch (request.verb) {
      case protocol::FileVerb::kStat: return serve_stat(request);
      case protocol::FileVerb::kList: return serve_list(request, channel);
      case protocol::FileVerb::kRead: return serve_read(request, channel);
      case protocol::FileVerb::kWrite: return serve_write(request, channel);
      case protocol::FileVerb::kMakeDirectory: return serve_make_directory(request);
      case protocol::FileVerb::kMove: return serve_move(request);
      case protocol::FileVerb::kRemove: return serve_remove(request);
      case protocol::FileVerb::kTarOut: return serve_tar_out(request, channel);
      case protocol::FileVerb::kTarIn: return serve_tar_in(request, channel);
      case protocol::FileVerb::kWatch: return serve_watch(request, channel);
    }
    return errno_error("verb", ENOSYS);
  }();
  if (result.ok()) return channel.reply(std::move(*result));
  const int number = result.error().error_number();
  channel.finish(number != 0 ? number : EIO, result.error().message());
}

}  // namespace dsec::agent
