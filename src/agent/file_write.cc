// Write: the new content stands under another name until it is whole, then takes
// the place of the old in one step. A reader sees one or the other.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

#include "agent/command_plan.h"
#include "agent/file_verbs.h"
#include "sys/file.h"

namespace dsec::agent {
namespace {

constexpr int kLinkLimit = 16;
constexpr mode_t kDefaultMode = 0644;

// Where the content goes in the end: links at the last place are followed, so
// that they stay links.
struct Destination {
  Location at;
  bool exists = false;
  struct stat status {};
};

Result<Destination> find_destination(std::string path, bool make_parents) {
  for (int links = 0; links < kLinkLimit; ++links) {
    Destination out;
    DSEC_ASSIGN(out.at, locate(path, make_parents));
    if (out.at.name.empty()) return errno_error(path, EISDIR);
    if (::fstatat(out.at.directory.get(), out.at.name.c_str(), &out.status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno != ENOENT) return errno_error(path, errno);
      return out;
    }
    if (!S_ISLNK(out.status.st_mode)) {
      if (S_ISDIR(out.status.st_mode)) return errno_error(path, EISDIR);
      if (!S_ISREG(out.status.st_mode)) return Error(ErrorCode::kInvalidArgument, path + ": not a regular file", EINVAL);
      out.exists = true;
      return out;
    }
    char target[PATH_MAX];
    const ssize_t length = ::readlinkat(out.at.directory.get(), out.at.name.c_str(), target, sizeof target);
    if (length <= 0) return errno_error(path, length < 0 ? errno : EINVAL);
    path = join_path(path.substr(0, path.rfind('/') + 1), std::string_view(target, static_cast<std::size_t>(length)));
  }
  return errno_error(path, ELOOP);
}

Result<void> copy_from_channel(int fd, const std::string& path, WorkerChannel& channel) {
  for (;;) {
    const std::string bytes = channel.receive_data();
    if (bytes.empty()) return {};
    if (auto written = sys::write_all(fd, bytes); !written.ok()) return Error(written.error().code(), path + ": " + written.error().message(), written.error().error_number());
  }
}

// Where the directory takes no new name, or the file is a mount point.
Result<void> write_in_place(const Destination& to, const std::string& path, WorkerChannel& channel) {
  const sys::Fd fd(::openat(to.at.directory.get(), to.at.name.c_str(), O_WRONLY | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd) return errno_error(path, errno);
  return copy_from_channel(fd.get(), path, channel);
}

bool is_mount_point(const Destination& to) {
  struct statx here {};
  if (::statx(to.at.directory.get(), to.at.name.c_str(), AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &here) != 0) return false;
  return (here.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

}  // namespace

Result<protocol::FileReply> serve_write(const protocol::FileRequest& request, WorkerChannel& channel) {
  DSEC_ASSIGN(const Destination to, find_destination(request.path, request.parents));
  const int directory = to.at.directory.get();
  const auto info = [&]() -> Result<protocol::FileReply> {
    DSEC_ASSIGN(protocol::FileInfo one, file_info_at(directory, to.at.name, request.path, IdNames()));
    return protocol::FileReply{.entries = {std::move(one)}};
  };

  // The right to replace a name is not the right to change what it names.
  if (to.exists && ::faccessat(directory, to.at.name.c_str(), W_OK, AT_EACCESS) != 0 && errno != ETXTBSY) return errno_error(request.path, errno);
  if (to.exists && (::faccessat(directory, ".", W_OK | X_OK, AT_EACCESS) != 0 || is_mount_point(to))) {
    DSEC_TRY(write_in_place(to, request.path, channel));
    return info();
  }

  mode_t mode = request.mode != 0 ? request.mode & 07777 : kDefaultMode;
  if (to.exists && request.mode == 0) mode = to.status.st_mode & 07777;
  const std::string name = temporary_name();
  bool named = false;
  sys::Fd fd(::openat(directory, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (!fd) {
    fd = sys::Fd(::openat(directory, name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600));
    named = true;
  }
  if (!fd) return errno_error(request.path, errno);
  const auto put_in_place = [&]() -> Result<void> {
    DSEC_TRY(copy_from_channel(fd.get(), request.path, channel));
    // Before the mode: a change of owner takes the set-user bits away.
    if (to.exists) [[maybe_unused]] const int owner = ::fchown(fd.get(), to.status.st_uid, to.status.st_gid);
    if (::fchmod(fd.get(), mode) != 0) return errno_error(request.path, errno);
    if (!named) {
      const std::string link = "/proc/self/fd/" + std::to_string(fd.get());
      if (::linkat(fd.get(), "", directory, name.c_str(), AT_EMPTY_PATH) != 0 &&
          ::linkat(AT_FDCWD, link.c_str(), directory, name.c_str(), AT_SYMLINK_FOLLOW) != 0) {
        return errno_error(request.path, errno);
      }
      named = true;
    }
    if (::renameat(directory, name.c_str(), directory, to.at.name.c_str()) != 0) return errno_error(request.path, errno);
    return {};
  };
  if (auto done = put_in_place(); !done.ok()) {
    if (named) ::unlinkat(directory, name.c_str(), 0);
    return std::move(done).error();
  }
  return info();
}

}  // namespace dsec::agent
