// The head of a data object that a store keeps compressed: where each chunk's
// frame stands.
//
// As bytes, all little-endian: "DSECZST1", the chunk's size and zero (32 bits
// each), the size of the data object (64 bits); then the length of each chunk's
// frame (32 bits). The frames follow without gaps, each of one chunk alone. A
// frame as long as its chunk is the chunk itself; the others are zstd.
//
// Nothing binds a table to the object's name, so it may lie: what it leads to
// is checked chunk by chunk, as if it had not been compressed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "origin/chunk_index.h"
#include "origin/chunked_head.h"

namespace dsec::origin {

class PackedTable {
 public:
  // Of what the first ChunkedHead::kBytes announce. kDataFault when that does not fit
  // into an object of `packed_bytes`.
  static Result<std::uint64_t> table_bytes(std::string_view head, std::uint64_t packed_bytes);
  static std::uint64_t bytes_for(std::uint64_t object_bytes);
  // All of the table, which is of an object of `packed_bytes`; kDataFault for what is none.
  static Result<PackedTable> parse(std::string_view bytes, std::uint64_t packed_bytes);

  // A frame for each chunk, none of them longer than its chunk.
  PackedTable(std::uint64_t object_bytes, const std::vector<std::uint32_t>& lengths);
  std::string bytes() const;

  std::uint64_t object_bytes() const { return object_bytes_; }
  std::uint64_t chunks() const { return starts_.size() - 1; }
  std::size_t size_of(std::uint64_t chunk) const;
  // Of the frame, in the packed object; for chunks() the end of the last one.
  std::uint64_t start_of(std::uint64_t chunk) const { return starts_[chunk]; }
  std::size_t length_of(std::uint64_t chunk) const { return starts_[chunk + 1] - starts_[chunk]; }

 private:
  std::uint64_t object_bytes_;
  std::vector<std::uint64_t> starts_;
};

}  // namespace dsec::origin
