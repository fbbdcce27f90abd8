// What this node has of one data object: a sparse file in which a chunk is
// either whole or a hole.
//
// Nothing is written down about which chunks are there: the filesystem knows. A
// chunk that an earlier process left is a claim until it is checked against the
// index, so a crash at any moment, of the process or of the machine, can cost a
// chunk but never serve a wrong one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "origin/buffer.h"
#include "sys/fd.h"

namespace dsec::stored {

class CacheFile {
 public:
  // Made, with its size, when it is missing.
  static Result<CacheFile> open(const std::string& path, std::uint64_t bytes);
  // A whole object that belongs to somebody else: never written.
  static Result<CacheFile> open_complete(const std::string& path, std::uint64_t bytes);

  std::uint64_t bytes() const { return bytes_; }
  // By chunk: whether anything is stored of it.
  Result<std::vector<bool>> stored_chunks() const;
  // All of [offset, offset + length), without a copy in the page cache where the
  // filesystem can do that; kDataFault when the file is shorter.
  Result<origin::Buffer> read(std::uint64_t offset, std::size_t length) const;
  Result<void> write(std::uint64_t offset, const char* bytes, std::size_t length) const;
  // Gives the space back; what is read there afterwards means nothing.
  Result<void> drop(std::uint64_t offset, std::uint64_t length) const;
  // SHA-256 of all of it, in hex. Blocks for as long as reading it takes.
  Result<std::string> digest() const;
  // To stable storage.
  Result<void> sync() const;
  // Gives the file a second name; kConflict when that is taken.
  Result<void> link_as(const std::string& path) const;

 private:
  CacheFile(sys::Fd buffered, sys::Fd direct, std::uint64_t bytes) : buffered_(std::move(buffered)), direct_(std::move(direct)), bytes_(bytes) {}
  static Result<CacheFile> with_flags(const std::string& path, int flags, std::uint64_t bytes);

  sys::Fd buffered_;
  sys::Fd direct_;  // none where the filesystem has no O_DIRECT
  std::uint64_t bytes_;
};

}  // namespace dsec::stored
