#include "edge/output_spool.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/crc32c.h"
#include "base/fail_point.h"
#include "sys/file.h"

namespace dsec::edge {
namespace {

constexpr std::uint32_t kMagic = 0x4F505344;
constexpr std::size_t kHeader = 48;

std::string file_path(const std::string& directory) { return directory + "/output"; }

}  // namespace

OutputSpool::OutputSpool(std::string directory, std::uint64_t limit_bytes)
    : directory_(std::move(directory)), limit_bytes_(limit_bytes) {}

Result<OutputSpool::Chunk> OutputSpool::append(std::string_view op_id, std::uint8_t stream, std::uint64_t stream_offset,
                                               std::string_view bytes) {
  DSEC_TRY(fail_point("edge.spool.append"));
  if (!file_.valid()) {
    DSEC_TRY(sys::make_directories(directory_, 0700));
    DSEC_ASSIGN(file_, sys::open_at(AT_FDCWD, file_path(directory_), O_RDWR | O_CREAT, 0600));
  }
  if (size_ + kHeader + bytes.size() > limit_bytes_)
    return Error(ErrorCode::kExhausted, "the sandbox's stored output is at its limit");
  char header[kHeader] = {};
  std::memcpy(header, &kMagic, 4);
  std::memcpy(header + 8, op_id.data(), std::min(op_id.size(), kOpIdBytes));
  header[24] = static_cast<char>(stream);
  const auto length = static_cast<std::uint32_t>(bytes.size());
  std::memcpy(header + 28, &length, 4);
  std::memcpy(header + 32, &stream_offset, 8);
  const std::uint32_t sum = crc32c({header + 8, kHeader - 8});
  std::memcpy(header + 4, &sum, 4);
  const iovec parts[2] = {{header, kHeader}, {const_cast<char*>(bytes.data()), bytes.size()}};
  const ssize_t written = ::pwritev(file_.get(), parts, 2, static_cast<off_t>(size_));
  if (written != static_cast<ssize_t>(kHeader + bytes.size())) {
    const int error_number = written < 0 ? errno : ENOSPC;
    if (ftruncate(file_.get(), static_cast<off_t>(size_)) != 0) return errno_error("cut the output spool", errno);
    return errno_error("write the output spool", error_number);
  }
  const Chunk chunk{.stream_offset = stream_offset, .file_offset = size_ + kHeader, .length = length};
  size_ += kHeader + bytes.size();
  return chunk;
}

Result<std::string> OutputSpool::read(const Chunk& chunk, std::uint64_t stream_offset, std::size_t most) const {
  const std::uint64_t skip = stream_offset - chunk.stream_offset;
  std::string out(std::min<std::uint64_t>(most, chunk.length - skip), '\0');
  std::size_t have = 0;
  while (have < out.size()) {
    const ssize_t n = ::pread(file_.get(), out.data() + have, out.size() - have,
                              static_cast<off_t>(chunk.file_offset + skip + have));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno_error("read the output spool", errno) : Error(ErrorCode::kDataFault, "the output spool is short");
    have += static_cast<std::size_t>(n);
  }
  return out;
}

Result<void> OutputSpool::recover(const Visitor& visit) {
  Result<sys::Fd> opened = sys::open_at(AT_FDCWD, file_path(directory_), O_RDWR);
  if (!opened.ok()) {
    if (opened.error().error_number() == ENOENT) return {};
    return std::move(opened).error();
  }
  file_ = std::move(opened).value();
  struct stat info {};
  if (fstat(file_.get(), &info) != 0) return errno_error("read the size of the output spool", errno);
  const auto end = static_cast<std::uint64_t>(info.st_size);
  size_ = 0;
  while (size_ + kHeader <= end) {
    char header[kHeader];
    if (::pread(file_.get(), header, kHeader, static_cast<off_t>(size_)) != static_cast<ssize_t>(kHeader)) break;
    std::uint32_t magic = 0, sum = 0, length = 0;
    std::uint64_t stream_offset = 0;
    std::memcpy(&magic, header, 4);
    std::memcpy(&sum, header + 4, 4);
    std::memcpy(&length, header + 28, 4);
    std::memcpy(&stream_offset, header + 32, 8);
    if (magic != kMagic || sum != crc32c({header + 8, kHeader - 8}) || size_ + kHeader + length > end) break;
    visit({header + 8, kOpIdBytes}, static_cast<std::uint8_t>(header[24]),
          Chunk{.stream_offset = stream_offset, .file_offset = size_ + kHeader, .length = length});
    size_ += kHeader + length;
  }
  if (size_ < end && ftruncate(file_.get(), static_cast<off_t>(size_)) != 0) return errno_error("cut the output spool", errno);
  return {};
}

void OutputSpool::remove() {
  if (!file_.valid()) return;
  file_.reset();
  ::unlink(file_path(directory_).c_str());
  ::rmdir(directory_.c_str());
}

}  // namespace dsec::edge
