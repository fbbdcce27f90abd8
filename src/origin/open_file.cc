#include "origin/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/fail_point.h"
#include "origin/expendable_threads.h"
#include "sys/file.h"

namespace dsec::origin {

namespace {

constexpr std::uint64_t kPage = Buffer::kAlignment;

std::uint64_t round_down(std::uint64_t value) { return value - value % kPage; }
std::uint64_t round_up(std::uint64_t value) { return round_down(value + kPage - 1); }

// How much of `out` the file, which has `size` bytes, fills from `start` on.
Result<std::size_t> read_up_to(int fd, std::uint64_t start, std::uint64_t size, Buffer& out, bool direct) {
  std::size_t done = 0;
  while (done < out.size() && start + done < size) {
    const ssize_t n = ::pread(fd, out.data() + done, out.size() - done, static_cast<off_t>(start + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return store_error("read", errno);
    const std::size_t before = done;
    done += static_cast<std::size_t>(n);
    // A direct read goes on at a whole page.
    if (direct && done < out.size() && start + done < size) done = round_down(done);
    if (done == before) break;
  }
  return done;
}

}  // namespace

Error store_error(std::string_view doing, int error_number) {
  Error error = errno_error(doing, error_number);
  switch (error_number) {
    case EIO:
    case ENXIO:
    case ENOTCONN:
    case ESTALE:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENODEV:
    case ESHUTDOWN:
    case ECONNABORTED:
      return Error(ErrorCode::kUnavailable, error.message(), error_number);
    default:
      return error;
  }
}

Result<std::shared_ptr<OpenFile>> OpenFile::open(const std::string& path, std::weak_ptr<ExpendableThreads> threads) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW;
  bool direct = true;
  sys::Fd fd(::open(path.c_str(), kFlags | O_DIRECT));
  if (!fd && errno == EINVAL) {
    direct = false;
    fd = sys::Fd(::open(path.c_str(), kFlags));
  }
  if (!fd) return store_error("open " + path, errno);
  struct stat st{};
  if (::fstat(fd.get(), &st) != 0) return store_error("look at " + path, errno);
  if (!S_ISREG(st.st_mode)) return Error(ErrorCode::kDataFault, path + " is not a file");
  return std::shared_ptr<OpenFile>(new OpenFile(std::move(fd), direct, static_cast<std::uint64_t>(st.st_size), std::move(threads)));
}

Result<std::shared_ptr<OpenFile>> OpenFile::create(const std::string& path, std::weak_ptr<ExpendableThreads> threads) {
  sys::Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd) return store_error("make " + path, errno);
  return std::shared_ptr<OpenFile>(new OpenFile(std::move(fd), false, 0, std::move(threads)));
}

OpenFile::~OpenFile() {
  const std::shared_ptr<ExpendableThreads> threads = threads_.lock();
  if (threads) threads->post([fd = std::make_shared<sys::Fd>(std::move(fd_))] {});
}

Result<Buffer> OpenFile::read(std::uint64_t offset, std::size_t length) const {
  DSEC_TRY(fail_point("origin.directory.read"));
  const std::uint64_t start = direct_ ? round_down(offset) : offset;
  const std::uint64_t end = direct_ ? round_up(offset + length) : offset + length;
  Buffer out(end - start);
  const std::size_t front = offset - start;
  DSEC_ASSIGN(const std::size_t got, read_up_to(fd_.get(), start, size_, out, direct_));
  if (got < front + length) return Error(ErrorCode::kDataFault, "the file ends after " + std::to_string(start + got) + " bytes");
  out.narrow(front, length);
  return out;
}

Result<void> OpenFile::write(std::uint64_t offset, std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return store_error("write", errno);
    offset += static_cast<std::uint64_t>(n);
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

Result<void> OpenFile::sync() const {
  if (::fsync(fd_.get()) != 0) return store_error("sync", errno);
  return {};
}

}  // namespace dsec::origin
