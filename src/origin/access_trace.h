// What was read first of a data object, and in which order: a hint for the next
// node, which may be wrong in every way but its form.
//
// As bytes, all little-endian: "DSECTRC1", the chunk's size and the number of
// entries (32 bits each), the object's size (64 bits); then for each entry the
// chunk, the milliseconds since the first read (32 bits each), and which of the
// chunk's 64 pages of 4 KiB were read (64 bits, the lowest bit is the first page).
// Each chunk stands there once; the entries ascend in time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "origin/chunk_index.h"
#include "origin/chunked_head.h"

namespace dsec::origin {

struct Touch {
  std::uint32_t chunk = 0;
  std::uint32_t at_ms = 0;
  std::uint64_t pages = 0;  // at least one, and none behind the object's end
  bool operator==(const Touch&) const = default;
};

class AccessTrace {
 public:
  static constexpr std::size_t kPageBytes = 4096;
  static constexpr std::size_t kMaxTouches = 1 << 16;  // of an object: 16 GiB that were touched
  static constexpr std::size_t kMaxBytes = ChunkedHead::kBytes + kMaxTouches * sizeof(Touch);
  static_assert(ChunkIndex::kChunkBytes / kPageBytes == 64);

  // `touches` are as the form wants them, and at most kMaxTouches.
  AccessTrace(std::uint64_t object_bytes, std::vector<Touch> touches) : object_bytes_(object_bytes), touches_(std::move(touches)) {}
  // kDataFault for what is no trace of an object of that size.
  static Result<AccessTrace> parse(std::string_view bytes, std::uint64_t object_bytes);
  std::string bytes() const;
  const std::vector<Touch>& touches() const { return touches_; }

 private:
  std::uint64_t object_bytes_;
  std::vector<Touch> touches_;
};

// The bits of the pages of `chunk` that [offset, offset + length) has bytes of.
std::uint64_t pages_of(std::uint64_t chunk, std::uint64_t offset, std::uint64_t length);

}  // namespace dsec::origin
