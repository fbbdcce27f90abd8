#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <map>
#include <memory>

#include "agent/file_verbs.h"
#include "agent/tar_format.h"

namespace dsec::agent {
namespace {

constexpr int kDepthLimit = 256;

class ArchiveWriter {
 public:
  ArchiveWriter(WorkerChannel& channel, std::uint64_t mount) : channel_(channel), mount_(mount) {}

  // `path` is the name in the archive, "" for the root itself.
  Result<void> add(int directory, const std::string& name, const std::string& path, int depth);

 private:
  Result<void> add_file(int directory, const std::string& name, TarEntry entry);
  Result<void> add_directory(int directory, const std::string& name, const std::string& path, int depth);

  WorkerChannel& channel_;
  const std::uint64_t mount_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::string> linked_;  // files of several names
};

std::uint64_t mount_of(int directory, const std::string& name) {
  struct statx here {};
  const int flags = AT_SYMLINK_NOFOLLOW | (name.empty() ? AT_EMPTY_PATH : 0);
  if (::statx(directory, name.c_str(), flags, STATX_MNT_ID, &here) != 0) return 0;
  return here.stx_mnt_id;
}

Result<void> ArchiveWriter::add(int directory, const std::string& name, const std::string& path, int depth) {
  struct stat status {};
  if (::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW | (name.empty() ? AT_EMPTY_PATH : 0)) != 0) {
    if (errno == ENOENT && depth > 0) return {};  // gone meanwhile
    return errno_error(path, errno);
  }
  TarEntry entry{.path = path.empty() ? "." : path,
                 .mode = status.st_mode & 07777,
                 .uid = status.st_uid,
                 .gid = status.st_gid,
                 .mtime = status.st_mtim.tv_sec};
  if (S_ISDIR(status.st_mode)) {
    entry.type = TarType::kDirectory;
    channel_.send_data(encode_tar_header(entry));
    // Another mount (/proc, /dev) is shown as an empty directory.
    if (mount_of(directory, name) != mount_) return {};
    return add_directory(directory, name, path, depth);
  }
  if (S_ISLNK(status.st_mode)) {
    char target[PATH_MAX];
    const ssize_t length = ::readlinkat(directory, name.c_str(), target, sizeof target);
    if (length < 0) return errno_error(path, errno);
    entry.type = TarType::kSymlink;
    entry.link.assign(target, static_cast<std::size_t>(length));
    channel_.send_data(encode_tar_header(entry));
    return {};
  }
  if (!S_ISREG(status.st_mode)) return {};  // devices, FIFOs and sockets have no content
  if (status.st_nlink > 1) {
    const auto [first, fresh] = linked_.try_emplace({status.st_dev, status.st_ino}, path);
    if (!fresh) {
      entry.type = TarType::kHardLink;
      entry.link = first->second;
      channel_.send_data(encode_tar_header(entry));
      return {};
    }
  }
  return add_file(directory, name, std::move(entry));
}

Result<void> ArchiveWriter::add_file(int directory, const std::string& name, TarEntry entry) {
  const sys::Fd fd(::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) return errno_error(entry.path, errno);
  if (!S_ISREG(status.st_mode)) return {};
  entry.size = static_cast<std::uint64_t>(status.st_size);
  channel_.send_data(encode_tar_header(entry));

  // The header has promised a size: what is missing at the end becomes zeros.
  std::string buffer(protocol::kDataChunk, '\0');
  for (std::uint64_t left = entry.size; left > 0;) {
    const std::size_t wanted = static_cast<std::size_t>(std::min<std::uint64_t>(left, buffer.size()));
    ssize_t got = ::read(fd.get(), buffer.data(), wanted);
    if (got < 0) return errno_error(entry.path, errno);
    if (got == 0) {
      std::fill(buffer.begin(), buffer.end(), '\0');
      got = static_cast<ssize_t>(wanted);
    }
    channel_.send_data({buffer.data(), static_cast<std::size_t>(got)});
    left -= static_cast<std::uint64_t>(got);
  }
  channel_.send_data(tar_padding(entry.size));
  return {};
}

Result<void> ArchiveWriter::add_directory(int directory, const std::string& name, const std::string& path, int depth) {
  if (depth > kDepthLimit) return errno_error(path, ENAMETOOLONG);
  sys::Fd fd(::openat(directory, name.empty() ? "." : name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return errno_error(path, errno);
  DIR* stream = ::fdopendir(fd.get());
  if (stream == nullptr) return errno_error(path, errno);
  const int below = fd.release();
  const std::unique_ptr<DIR, int (*)(DIR*)> closer(stream, ::closedir);
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(stream)) {
    const std::string_view child = entry->d_name;
    if (child != "." && child != "..") names.emplace_back(child);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& child : names) {
    DSEC_TRY(add(below, child, path.empty() ? child : path + "/" + child, depth + 1));
  }
  return {};
}

}  // namespace

// A directory's entries are named from it ("./", "a", "a/b"), a file by its name.
Result<protocol::FileReply> serve_tar_out(const protocol::FileRequest& request, WorkerChannel& channel) {
  DSEC_ASSIGN(const sys::Fd found, open_path(request.path, O_PATH));
  struct stat status {};
  if (::fstat(found.get(), &status) != 0) return errno_error(request.path, errno);
  if (S_ISDIR(status.st_mode)) {
    ArchiveWriter writer(channel, mount_of(found.get(), ""));
    DSEC_TRY(writer.add(found.get(), "", "", 0));
  } else {
    DSEC_ASSIGN(const Location at, locate(request.path, false));
    ArchiveWriter writer(channel, 0);
    DSEC_TRY(writer.add(at.directory.get(), at.name, at.name, 0));
  }
  channel.send_data(tar_end());
  channel.end_data();
  return protocol::FileReply{};
}

}  // namespace dsec::agent
