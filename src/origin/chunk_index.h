// The checksums of a data object, chunk by chunk, so that a part of it can be
// checked without the rest.
//
// As bytes: "DSECIDX1", the chunk's size and zero (32 bits each), the object's
// size (64 bits), all little-endian; then 32 bytes of SHA-256 for each chunk.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "origin/content.h"

namespace dsec::origin {

class ChunkIndex {
 public:
  static constexpr std::size_t kChunkBytes = 256 << 10;

  // Reads all of `content`, whose digest is checked on the way (kDataFault).
  static Result<ChunkIndex> of(const Content& content);
  // kDataFault for what is no index.
  static Result<ChunkIndex> parse(std::string_view bytes);
  std::string bytes() const;
  // How long the bytes of the index of an object are.
  static std::uint64_t bytes_for(std::uint64_t object_bytes);

  std::uint64_t object_bytes() const { return object_bytes_; }
  std::uint64_t chunks() const { return digests_.size() / kDigestBytes; }
  // All chunks are kChunkBytes long but the last one. `chunk` < chunks().
  std::size_t size_of(std::uint64_t chunk) const;
  bool fits(std::uint64_t chunk, std::string_view bytes) const;

 private:
  static constexpr std::size_t kDigestBytes = 32;
  ChunkIndex(std::uint64_t object_bytes, std::string digests) : object_bytes_(object_bytes), digests_(std::move(digests)) {}

  std::uint64_t object_bytes_ = 0;
  std::string digests_;
};

}  // namespace dsec::origin
