#include "stored/cache_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "origin/chunk_index.h"
#include "origin/content.h"
#include "sys/file.h"

namespace dsec::stored {

namespace {

constexpr std::uint64_t kChunk = origin::ChunkIndex::kChunkBytes;

bool aligned(std::uint64_t value) { return value % origin::Buffer::kAlignment == 0; }

}  // namespace

Result<CacheFile> CacheFile::open(const std::string& path, std::uint64_t bytes) {
  DSEC_ASSIGN(CacheFile file, with_flags(path, O_RDWR | O_CREAT, bytes));
  struct stat status {};
  if (::fstat(file.buffered_.get(), &status) != 0) return errno_error("look at " + path, errno);
  if (static_cast<std::uint64_t>(status.st_size) != bytes && ::ftruncate(file.buffered_.get(), static_cast<off_t>(bytes)) != 0)
    return errno_error("make " + path, errno);
  return file;
}

Result<CacheFile> CacheFile::open_complete(const std::string& path, std::uint64_t bytes) {
  DSEC_ASSIGN(CacheFile file, with_flags(path, O_RDONLY, bytes));
  struct stat status {};
  if (::fstat(file.buffered_.get(), &status) != 0) return errno_error("look at " + path, errno);
  if (static_cast<std::uint64_t>(status.st_size) != bytes) return Error(ErrorCode::kDataFault, path + " has another size than its index says");
  return file;
}

Result<CacheFile> CacheFile::with_flags(const std::string& path, int flags, std::uint64_t bytes) {
  DSEC_ASSIGN(sys::Fd buffered, sys::open_at(AT_FDCWD, path, flags, 0600));
  Result<sys::Fd> direct = sys::open_at(AT_FDCWD, path, (flags & O_ACCMODE) | O_DIRECT);
  return CacheFile(std::move(buffered), direct.ok() ? std::move(direct).value() : sys::Fd(), bytes);
}

Result<std::vector<bool>> CacheFile::stored_chunks() const {
  std::vector<bool> stored((bytes_ + kChunk - 1) / kChunk, false);
  off_t at = 0;
  while (static_cast<std::uint64_t>(at) < bytes_) {
    const off_t data = ::lseek(buffered_.get(), at, SEEK_DATA);
    if (data < 0) {
      if (errno == ENXIO) break;
      return errno_error("look for what is cached", errno);
    }
    off_t hole = ::lseek(buffered_.get(), data, SEEK_HOLE);
    if (hole < 0) return errno_error("look for what is cached", errno);
    for (std::uint64_t chunk = static_cast<std::uint64_t>(data) / kChunk; chunk * kChunk < static_cast<std::uint64_t>(hole); ++chunk) stored[chunk] = true;
    at = hole;
  }
  return stored;
}

Result<origin::Buffer> CacheFile::read(std::uint64_t offset, std::size_t length) const {
  if (offset + length > bytes_) return Error(ErrorCode::kDataFault, "read past the end of a cached object");
  const std::uint64_t front = offset % origin::Buffer::kAlignment;
  const std::uint64_t from = offset - front;
  std::size_t wanted = length + front;
  wanted = (wanted + origin::Buffer::kAlignment - 1) / origin::Buffer::kAlignment * origin::Buffer::kAlignment;
  origin::Buffer buffer(wanted);
  const int fd = direct_ ? direct_.get() : buffered_.get();
  std::size_t got = 0;
  while (got < front + length) {
    const ssize_t n = ::pread(fd, buffer.data() + got, wanted - got, static_cast<off_t>(from + got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("read a cached chunk", errno);
    if (n == 0) return Error(ErrorCode::kDataFault, "a cached object is shorter than its index says");
    got += static_cast<std::size_t>(n);
  }
  buffer.narrow(front, length);
  return buffer;
}

Result<void> CacheFile::write(std::uint64_t offset, const char* bytes, std::size_t length) const {
  const bool direct = direct_ && aligned(offset) && aligned(length) && aligned(reinterpret_cast<std::uintptr_t>(bytes));
  const int fd = direct ? direct_.get() : buffered_.get();
  std::size_t done = 0;
  while (done < length) {
    const ssize_t n = ::pwrite(fd, bytes + done, length - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("keep a chunk", errno);
    done += static_cast<std::size_t>(n);
  }
  return {};
}

Result<void> CacheFile::drop(std::uint64_t offset, std::uint64_t length) const {
  if (::fallocate(buffered_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(length)) != 0)
    return errno_error("drop a cached chunk", errno);
  return {};
}

Result<std::string> CacheFile::digest() const {
  DSEC_ASSIGN(const origin::Content content, origin::Content::of_file(buffered_.get()));
  // Read once, and not again by this process.
  (void)::posix_fadvise(buffered_.get(), 0, 0, POSIX_FADV_DONTNEED);
  return content.hex();
}

Result<void> CacheFile::sync() const {
  if (::fdatasync(buffered_.get()) != 0) return errno_error("sync a cached object", errno);
  return {};
}

Result<void> CacheFile::link_as(const std::string& path) const {
  const std::string from = "/proc/self/fd/" + std::to_string(buffered_.get());
  if (::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) != 0) return errno_error("name a whole object " + path, errno);
  return {};
}

}  // namespace dsec::stored
