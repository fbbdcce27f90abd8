#include "sys/file.h"

#include <dirent.h>
#include <linux/openat2.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdint>
#include <memory>

namespace dsec::sys {

Result<Fd> open_at(int dir, const std::string& path, int flags, mode_t mode) {
  int fd;
  do {
    fd = ::openat(dir, path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return errno_error("open " + path, errno);
  return Fd(fd);
}

Result<Fd> duplicate(int fd) {
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) return errno_error("duplicate a descriptor", errno);
  return Fd(copy);
}

Result<std::string> read_all(int fd, std::size_t limit) {
  std::string out;
  char buffer[16384];
  for (;;) {
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("read", errno);
    if (n == 0) return out;
    if (out.size() + static_cast<std::size_t>(n) > limit) return Error(ErrorCode::kTooLarge, "the file is longer than expected");
    out.append(buffer, static_cast<std::size_t>(n));
  }
}

Result<std::string> read_file_at(int dir, const std::string& path, std::size_t limit) {
  DSEC_ASSIGN(const Fd fd, open_at(dir, path, O_RDONLY));
  return read_all(fd.get(), limit).within(path);
}

Result<std::string> read_file(const std::string& path, std::size_t limit) { return read_file_at(AT_FDCWD, path, limit); }

Result<void> make_directories(const std::string& path, mode_t mode) {
  for (std::size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    const std::string part = path.substr(0, at);
    if (!part.empty() && ::mkdir(part.c_str(), mode) != 0 && errno != EEXIST) return errno_error("make directory " + part, errno);
    if (at == std::string::npos) return {};
  }
}

Result<void> write_at(int dir, const std::string& path, std::string_view text) {
  DSEC_ASSIGN(const Fd fd, open_at(dir, path, O_WRONLY));
  ssize_t n;
  do {
    n = ::write(fd.get(), text.data(), text.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0) return errno_error("write " + path, errno);
  if (static_cast<std::size_t>(n) != text.size()) return Error(ErrorCode::kInternal, "short write to " + path);
  return {};
}

Result<void> write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("write", errno);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

Result<void> replace_file(const std::string& path, std::string_view bytes, mode_t mode) {
  const std::string temporary = path + ".new";
  const auto slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  {
    DSEC_ASSIGN(const Fd fd, open_at(AT_FDCWD, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, mode));
    if (::fchmod(fd.get(), mode) != 0) return errno_error("set the mode of " + temporary, errno);
    DSEC_TRY(write_all(fd.get(), bytes).within(temporary));
    if (::fsync(fd.get()) != 0) return errno_error("sync " + temporary, errno);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) return errno_error("rename to " + path, errno);
  DSEC_ASSIGN(const Fd parent, open_at(AT_FDCWD, directory, O_RDONLY | O_DIRECTORY));
  if (::fsync(parent.get()) != 0) return errno_error("sync " + directory, errno);
  return {};
}

namespace {

struct CloseDirectory {
  void operator()(DIR* d) const { ::closedir(d); }
};

}  // namespace

Result<std::vector<std::string>> list_directory(const std::string& path) {
  const std::unique_ptr<DIR, CloseDirectory> stream(::opendir(path.c_str()));
  if (!stream) return errno_error("list " + path, errno);
  std::vector<std::string> out;
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") out.emplace_back(name);
  }
  return out;
}

namespace {

// Empties `directory`. A hostile tree can be deeper than our stack and our
// descriptors: what lies deeper than kRecursion is moved up into `top` and meets
// the next round there.
constexpr int kRecursion = 64;

struct RemovalTop {
  int fd;
  std::uint64_t moved = 0;       // names given so far
  bool moved_this_round = false;
};

Result<Fd> open_subtree(int dir, const std::string& name) {
  open_how how{};
  how.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV;
  const int fd = static_cast<int>(::syscall(SYS_openat2, dir, name.c_str(), &how, sizeof how));
  if (fd < 0) return errno_error("open " + name + " to remove it", errno);
  return Fd(fd);
}

Result<void> remove_contents(Fd directory, int depth, RemovalTop& top) {
  std::unique_ptr<DIR, CloseDirectory> stream(::fdopendir(directory.get()));
  if (!stream) return errno_error("read a directory", errno);
  const int fd = directory.release();  // owned by the stream now
  while (const dirent* entry = ::readdir(stream.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (::unlinkat(fd, name.c_str(), 0) == 0) continue;
    if (errno != EISDIR && errno != EPERM) return errno_error("remove " + name, errno);
    if (depth >= kRecursion) {
      // The tree's owner may have used such names: take the next one then.
      int error = EEXIST;
      while (error == EEXIST) {
        const std::string moved = ".dsec-removed-" + std::to_string(top.moved++);
        error = ::renameat2(fd, name.c_str(), top.fd, moved.c_str(), RENAME_NOREPLACE) == 0 ? 0 : errno;
      }
      if (error != 0) return errno_error("move " + name, error);
      top.moved_this_round = true;
      continue;
    }
    DSEC_ASSIGN(Fd child, open_subtree(fd, name));
    DSEC_TRY(remove_contents(std::move(child), depth + 1, top));
    if (::unlinkat(fd, name.c_str(), AT_REMOVEDIR) != 0) return errno_error("remove " + name, errno);
  }
  return {};
}

}  // namespace

Result<void> remove_tree_at(int dir, const std::string& name) {
  Result<Fd> opened = open_subtree(dir, name);
  if (!opened.ok()) {
    const int error = opened.error().error_number();
    if (error == ENOENT) return {};
    if (error != ENOTDIR && error != ELOOP) return std::move(opened).error();
    if (::unlinkat(dir, name.c_str(), 0) != 0 && errno != ENOENT) return errno_error("remove " + name, errno);
    return {};
  }
  const Fd root = std::move(opened).value();
  RemovalTop top{root.get()};
  do {
    top.moved_this_round = false;
    DSEC_ASSIGN(Fd again, open_at(root.get(), ".", O_RDONLY | O_DIRECTORY));
    DSEC_TRY(remove_contents(std::move(again), 0, top).within(name));
  } while (top.moved_this_round);
  if (::unlinkat(dir, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) return errno_error("remove " + name, errno);
  return {};
}

}  // namespace dsec::sys
