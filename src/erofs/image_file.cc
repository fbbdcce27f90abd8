#include "erofs/image_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace dsec::erofs {

namespace {

constexpr std::size_t kBufferBytes = 1 << 20;
constexpr std::size_t kMostFull = 4;
constexpr std::size_t kCompareBytes = 32 << 10;
constexpr std::uint64_t kMostBytes = std::uint64_t{kNoBlock} * kBlockBytes / 2;

Result<void> write_at(int fd, std::string_view bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("write the image", errno);
    bytes.remove_prefix(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

Result<void> read_at(int fd, char* out, std::size_t bytes, std::uint64_t offset) {
  while (bytes != 0) {
    const ssize_t n = ::pread(fd, out, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("read the image", errno);
    if (n == 0) return Error(ErrorCode::kInternal, "the image ends early");
    out += n;
    bytes -= static_cast<std::size_t>(n);
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

}  // namespace

ImageFile::ImageFile(int fd) : fd_(fd) { filling_.bytes.reserve(kBufferBytes); }

ImageFile::~ImageFile() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    full_.clear();
  }
  changed_.notify_all();
  if (writer_.joinable()) writer_.join();
}

Result<void> ImageFile::append(std::string_view bytes) {
  if (bytes.size() > kMostBytes - bytes_) return Error(ErrorCode::kTooLarge, "an image's file does not pass 8 TiB");
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    const std::size_t part = std::min(bytes.size(), kBufferBytes - filling_.bytes.size());
    filling_.bytes.append(bytes.substr(0, part));
    bytes.remove_prefix(part);
    if (filling_.bytes.size() == kBufferBytes) DSEC_TRY(hand_over());
  }
  return {};
}

Result<void> ImageFile::append_zeros(std::uint64_t bytes) {
  static const std::string kZeros(kBlockBytes, '\0');
  for (std::uint64_t left = bytes; left != 0;) {
    const std::uint64_t part = std::min<std::uint64_t>(left, kZeros.size());
    DSEC_TRY(append(std::string_view(kZeros).substr(0, part)));
    left -= part;
  }
  return {};
}

Result<void> ImageFile::hand_over() {
  std::unique_lock lock(mutex_);
  if (!writer_.joinable()) writer_ = std::thread([this] { write_and_hash(); });
  changed_.wait(lock, [&] { return full_.size() < kMostFull || error_; });
  if (error_) return *error_;
  const std::uint64_t next = filling_.offset + filling_.bytes.size();
  full_.push_back(std::move(filling_));
  filling_ = {.bytes = {}, .offset = next};
  if (!spare_.empty()) {
    filling_.bytes = std::move(spare_.back());
    spare_.pop_back();
  }
  filling_.bytes.clear();
  filling_.bytes.reserve(kBufferBytes);
  changed_.notify_all();
  return {};
}

Result<void> ImageFile::store(const Buffer& buffer) {
  DSEC_TRY(write_at(fd_, buffer.bytes, buffer.offset));
  // Only a beginning: what fails here fails again when the file is synced.
  ::sync_file_range(fd_, static_cast<off_t>(buffer.offset), static_cast<off_t>(buffer.bytes.size()), SYNC_FILE_RANGE_WRITE);
  hash_.update(buffer.bytes);
  return {};
}

void ImageFile::write_and_hash() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !full_.empty(); });
    if (full_.empty()) return;
    Buffer buffer = std::move(full_.front());
    full_.erase(full_.begin());
    lock.unlock();
    Result<void> stored = store(buffer);
    lock.lock();
    written_ = buffer.offset + buffer.bytes.size();
    spare_.push_back(std::move(buffer.bytes));
    if (!stored.ok()) error_ = std::move(stored).error();
    changed_.notify_all();
    if (error_) return;
  }
}

Result<void> ImageFile::read(std::uint64_t offset, std::span<char> into) {
  const std::uint64_t flushed = std::min<std::uint64_t>(into.size(), filling_.offset - std::min(offset, filling_.offset));
  if (flushed != 0) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return written_ >= offset + flushed || error_; });
    if (error_) return *error_;
    lock.unlock();
    DSEC_TRY(read_at(fd_, into.data(), flushed, offset));
  }
  if (flushed < into.size()) filling_.bytes.copy(into.data() + flushed, into.size() - flushed, offset + flushed - filling_.offset);
  return {};
}

Result<bool> ImageFile::holds(std::uint64_t offset, std::string_view bytes) {
  DSEC_CHECK(offset + bytes.size() <= bytes_);
  std::array<char, kCompareBytes> buffer;
  while (!bytes.empty()) {
    const std::string_view part = bytes.substr(0, buffer.size());
    DSEC_TRY(read(offset, std::span(buffer).first(part.size())));
    if (part != std::string_view(buffer.data(), part.size())) return false;
    bytes.remove_prefix(part.size());
    offset += part.size();
  }
  return true;
}

Result<bool> ImageFile::same(std::uint64_t one, std::uint64_t other, std::uint64_t bytes) {
  std::array<char, kCompareBytes> buffer;
  for (std::uint64_t done = 0; done < bytes;) {
    const std::size_t part = std::min<std::uint64_t>(bytes - done, buffer.size());
    DSEC_TRY(read(one + done, std::span(buffer).first(part)));
    DSEC_ASSIGN(const bool equal, holds(other + done, std::string_view(buffer.data(), part)));
    if (!equal) return false;
    done += part;
  }
  return true;
}

Result<void> ImageFile::finish() {
  DSEC_CHECK(bytes_ % kBlockBytes == 0);
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (writer_.joinable()) writer_.join();
  if (error_) return *error_;
  DSEC_TRY(store(filling_));
  filling_.bytes.clear();
  digest_ = hash_.hex();
  return {};
}

Result<void> ImageFile::keep_only(std::vector<BlockRun>& runs) {
  std::string buffer(kBufferBytes, '\0');
  Sha256 hash;
  std::uint64_t end = 0;
  for (BlockRun& run : runs) {
    const std::uint64_t from = std::uint64_t{run.block} * kBlockBytes;
    const std::uint64_t size = std::uint64_t{run.blocks} * kBlockBytes;
    DSEC_CHECK(from >= end && from + size <= bytes_);
    for (std::uint64_t done = 0; done < size;) {
      const std::size_t part = std::min<std::uint64_t>(size - done, buffer.size());
      DSEC_TRY(read_at(fd_, buffer.data(), part, from + done));
      hash.update(std::string_view(buffer).substr(0, part));
      if (from != end) DSEC_TRY(write_at(fd_, std::string_view(buffer).substr(0, part), end + done));
      done += part;
    }
    run.block = static_cast<std::uint32_t>(end / kBlockBytes);
    end += size;
  }
  if (::ftruncate(fd_, static_cast<off_t>(end)) != 0) return errno_error("cut the image's data", errno);
  bytes_ = end;
  digest_ = hash.hex();
  return {};
}

}  // namespace dsec::erofs
