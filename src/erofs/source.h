// Source: the bytes of a metadata file or of a data file, by offset.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sys/fd.h"

namespace dsec::erofs {

class Source {
 public:
  virtual ~Source() = default;
  virtual std::uint64_t size() const = 0;
  // Fills `into` from `offset`; kDataFault when the source ends before that.
  // May block. One caller at a time.
  virtual Result<void> read(std::uint64_t offset, std::span<char> into) = 0;
};

// A regular file, read by pread through one window of 64 KiB: metadata is read
// in many small pieces that lie near one another.
class FileSource final : public Source {
 public:
  // The size is taken now; a file that is cut afterwards gives kDataFault.
  static Result<std::unique_ptr<FileSource>> open(sys::Fd file);
  std::uint64_t size() const override { return size_; }
  Result<void> read(std::uint64_t offset, std::span<char> into) override;

 private:
  FileSource(sys::Fd file, std::uint64_t size) : file_(std::move(file)), size_(size) {}
  Result<void> pread_all(std::uint64_t offset, std::span<char> into) const;

  const sys::Fd file_;
  const std::uint64_t size_;
  std::uint64_t window_at_ = 0;
  std::vector<char> window_;
};

// Bytes that the caller keeps.
class MemorySource final : public Source {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}
  std::uint64_t size() const override { return bytes_.size(); }
  Result<void> read(std::uint64_t offset, std::span<char> into) override;

 private:
  const std::string_view bytes_;
};

}  // namespace dsec::erofs
