// Extraction: nothing is made outside the target, whatever the archive says.
// Every name is resolved by the kernel beneath the target's descriptor, so a link
// that leads out, of the archive or made meanwhile by the payload, ends in EXDEV.
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "agent/file_verbs.h"
#include "agent/tar_format.h"
#include "sys/file.h"

namespace dsec::agent {
namespace {

class Extraction {
 public:
  explicit Extraction(sys::Fd root) : root_(std::move(root)) {}

  Result<void> take(TarEntry entry, TarReader& reader);
  // Directories get their modes last: one may forbid to write into it.
  void finish();

 private:
  struct Late {
    std::string path;
    std::uint32_t mode;
    std::int64_t mtime;
  };
  Result<sys::Fd> open_beneath(const std::string& path, int flags) const;
  Result<sys::Fd> parent_of(const std::string& path) const;
  Result<void> write_file(int parent, const std::string& name, const TarEntry& entry, TarReader& reader) const;
  Result<void> make_way(int parent, const std::string& name, const std::string& path) const;

  sys::Fd root_;
  std::vector<Late> late_;
};

// Relative, without empty or "." parts. EINVAL when a part is "..".
Result<std::string> clean_path(const std::string& path) {
  std::string out;
  std::string_view rest = path;
  while (!rest.empty()) {
    const std::size_t slash = rest.find('/');
    const std::string_view part = rest.substr(0, slash);
    rest = slash == std::string_view::npos ? std::string_view{} : rest.substr(slash + 1);
    if (part.empty() || part == ".") continue;
    if (part == "..") return Error(ErrorCode::kInvalidArgument, path + ": leads out of the target", EINVAL);
    if (!out.empty()) out += '/';
    out += part;
  }
  return out;
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

Result<sys::Fd> Extraction::open_beneath(const std::string& path, int flags) const {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  sys::Fd fd(static_cast<int>(::syscall(SYS_openat2, root_.get(), path.empty() ? "." : path.c_str(), &how, sizeof how)));
  if (!fd) return errno_error(path, errno);
  return fd;
}

Result<sys::Fd> Extraction::parent_of(const std::string& path) const {
  const std::size_t slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "" : path.substr(0, slash);
  auto found = open_beneath(parent, O_PATH | O_DIRECTORY);
  if (found.ok() || found.error().error_number() != ENOENT) return found;
  DSEC_ASSIGN(const sys::Fd above, parent_of(parent));
  if (::mkdirat(above.get(), last_part(parent).c_str(), 0755) != 0 && errno != EEXIST) return errno_error(parent, errno);
  return open_beneath(parent, O_PATH | O_DIRECTORY);
}

Result<void> Extraction::make_way(int parent, const std::string& name, const std::string& path) const {
  if (::unlinkat(parent, name.c_str(), 0) != 0 && errno != ENOENT) return errno_error(path, errno);
  return {};
}

Result<void> Extraction::write_file(int parent, const std::string& name, const TarEntry& entry, TarReader& reader) const {
  const sys::Fd fd(::openat(parent, name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return errno_error(entry.path, errno);
  for (;;) {
    DSEC_ASSIGN(const std::string_view bytes, reader.read_data());
    if (bytes.empty()) break;
    if (auto written = sys::write_all(fd.get(), bytes); !written.ok()) return std::move(written).within(entry.path);
  }
  if (::fchmod(fd.get(), entry.mode) != 0) return errno_error(entry.path, errno);
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, {.tv_sec = entry.mtime, .tv_nsec = 0}};
  ::futimens(fd.get(), times);
  return {};
}

Result<void> Extraction::take(TarEntry entry, TarReader& reader) {
  DSEC_ASSIGN(const std::string path, clean_path(entry.path));
  if (entry.type == TarType::kOther) return {};
  if (path.empty()) return {};  // the target itself
  DSEC_ASSIGN(const sys::Fd parent, parent_of(path));
  const std::string name = last_part(path);
  switch (entry.type) {
    case TarType::kFile:
      DSEC_TRY(make_way(parent.get(), name, path));
      return write_file(parent.get(), name, entry, reader);
    case TarType::kDirectory:
      if (::mkdirat(parent.get(), name.c_str(), 0755) != 0) {
        if (errno != EEXIST) return errno_error(path, errno);
        DSEC_ASSIGN(const sys::Fd there, open_beneath(path, O_PATH | O_DIRECTORY));  // ENOTDIR when it is another thing
      }
      late_.push_back({path, entry.mode, entry.mtime});
      return {};
    case TarType::kSymlink:
      DSEC_TRY(make_way(parent.get(), name, path));
      if (::symlinkat(entry.link.c_str(), parent.get(), name.c_str()) != 0) return errno_error(path, errno);
      return {};
    case TarType::kHardLink: {
      DSEC_ASSIGN(const std::string source, clean_path(entry.link));
      if (source.empty() || source == path) return {};
      DSEC_ASSIGN(const sys::Fd from, parent_of(source));
      DSEC_TRY(make_way(parent.get(), name, path));
      if (::linkat(from.get(), last_part(source).c_str(), parent.get(), name.c_str(), 0) != 0) return errno_error(path, errno);
      return {};
    }
    case TarType::kOther: return {};
  }
  return {};
}

void Extraction::finish() {
  for (auto at = late_.rbegin(); at != late_.rend(); ++at) {
    const auto fd = open_beneath(at->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK);
    if (!fd.ok()) continue;
    ::fchmod(fd->get(), at->mode);
    const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, {.tv_sec = at->mtime, .tv_nsec = 0}};
    ::futimens(fd->get(), times);
  }
}

}  // namespace

// What is extracted belongs to the request's user: ids of another machine mean nothing here.
Result<protocol::FileReply> serve_tar_in(const protocol::FileRequest& request, WorkerChannel& channel) {
  if (request.parents) DSEC_TRY(make_directories_for_user(request.path, 0755));
  DSEC_ASSIGN(sys::Fd root, open_path(request.path, O_RDONLY | O_DIRECTORY | O_NONBLOCK));
  Extraction extraction(std::move(root));
  TarReader reader([&channel] { return channel.receive_data(); });
  for (;;) {
    DSEC_ASSIGN(auto entry, reader.next());
    if (!entry) break;
    DSEC_TRY(extraction.take(std::move(*entry), reader));
  }
  extraction.finish();
  reader.drain();
  return protocol::FileReply{};
}

}  // namespace dsec::agent
