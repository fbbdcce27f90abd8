#include "origin/chunk_index.h"

#include <algorithm>
#include <vector>

#include "erofs/digest.h"
#include "model/sha256.h"
#include "origin/chunked_head.h"

namespace dsec::origin {

namespace {

constexpr std::string_view kMagic = "DSECIDX1";

std::uint64_t chunks_of(std::uint64_t object_bytes) { return (object_bytes + ChunkIndex::kChunkBytes - 1) / ChunkIndex::kChunkBytes; }

}  // namespace

std::uint64_t ChunkIndex::bytes_for(std::uint64_t object_bytes) { return ChunkedHead::kBytes + chunks_of(object_bytes) * kDigestBytes; }

Result<ChunkIndex> ChunkIndex::of(const Content& content) {
  erofs::Sha256 whole;
  std::string digests;
  std::vector<char> chunk(kChunkBytes);
  for (std::uint64_t at = 0; at < content.size(); at += kChunkBytes) {
    const std::string_view bytes(chunk.data(), std::min<std::uint64_t>(kChunkBytes, content.size() - at));
    DSEC_TRY(content.read(at, chunk.data(), bytes.size()));
    whole.update(bytes);
    digests += model::sha256(bytes);
  }
  if (whole.hex() != content.hex()) return Error(ErrorCode::kDataFault, "the data is not what its digest says");
  return ChunkIndex(content.size(), std::move(digests));
}

Result<ChunkIndex> ChunkIndex::parse(std::string_view bytes) {
  DSEC_ASSIGN(const ChunkedHead head, parse_head(bytes, kMagic, "chunk index"));
  if (head.number != 0) return Error(ErrorCode::kDataFault, "chunk index: of a form that is not known");
  if (bytes.size() != bytes_for(head.object_bytes)) return Error(ErrorCode::kDataFault, "chunk index: its length does not fit the object's");
  return ChunkIndex(head.object_bytes, std::string(bytes.substr(ChunkedHead::kBytes)));
}

std::string ChunkIndex::bytes() const { return to_bytes(kMagic, {.object_bytes = object_bytes_}) + digests_; }

std::size_t ChunkIndex::size_of(std::uint64_t chunk) const { return std::min<std::uint64_t>(kChunkBytes, object_bytes_ - chunk * kChunkBytes); }

bool ChunkIndex::fits(std::uint64_t chunk, std::string_view bytes) const {
  DSEC_CHECK(chunk < chunks());
  if (bytes.size() != size_of(chunk)) return false;
  return model::sha256(bytes) == std::string_view(digests_).substr(chunk * kDigestBytes, kDigestBytes);
}

}  // namespace dsec::origin
