#include "erofs/source.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace dsec::erofs {
namespace {

constexpr std::uint64_t kWindow = 64 << 10;

Result<void> check_range(std::uint64_t offset, std::size_t length, std::uint64_t size) {
  if (offset > size || length > size - offset)
    return Error(ErrorCode::kDataFault, std::to_string(length) + " bytes at byte " + std::to_string(offset) + " lie beyond the end, " +
                                            std::to_string(size));
  return {};
}

}  // namespace

Result<std::unique_ptr<FileSource>> FileSource::open(sys::Fd file) {
  struct stat st{};
  if (::fstat(file.get(), &st) != 0) return errno_error("stat an image", errno);
  if (!S_ISREG(st.st_mode)) return Error(ErrorCode::kDataFault, "an image is a regular file");
  return std::unique_ptr<FileSource>(new FileSource(std::move(file), static_cast<std::uint64_t>(st.st_size)));
}

Result<void> FileSource::pread_all(std::uint64_t offset, std::span<char> into) const {
  while (!into.empty()) {
    const ssize_t got = ::pread(file_.get(), into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_error("read an image", errno);
    if (got == 0) return Error(ErrorCode::kDataFault, "the file ends at byte " + std::to_string(offset) + ", before its size");
    offset += static_cast<std::uint64_t>(got);
    into = into.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

Result<void> FileSource::read(std::uint64_t offset, std::span<char> into) {
  DSEC_TRY(check_range(offset, into.size(), size_));
  if (into.size() >= kWindow) return pread_all(offset, into);
  while (!into.empty()) {
    if (window_.empty() || offset < window_at_ || offset >= window_at_ + window_.size()) {
      window_at_ = offset / kWindow * kWindow;
      std::vector<char> window(static_cast<std::size_t>(std::min(kWindow, size_ - window_at_)));
      window_.clear();  // nothing stale if the read fails
      DSEC_TRY(pread_all(window_at_, window));
      window_ = std::move(window);
    }
    const auto within = static_cast<std::size_t>(offset - window_at_);
    const std::size_t part = std::min(into.size(), window_.size() - within);
    std::memcpy(into.data(), window_.data() + within, part);
    offset += part;
    into = into.subspan(part);
  }
  return {};
}

Result<void> MemorySource::read(std::uint64_t offset, std::span<char> into) {
  DSEC_TRY(check_range(offset, into.size(), bytes_.size()));
  if (!into.empty()) std::memcpy(into.data(), bytes_.data() + offset, into.size());
  return {};
}

}  // namespace dsec::erofs
