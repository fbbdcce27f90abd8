#include "origin/chunk_index.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "erofs/digest.h"
#include "model/sha256.h"

namespace dsec::origin {

namespace {

struct Head {
  char magic[8];
  std::uint32_t chunk_bytes;
  std::uint32_t reserved;
  std::uint64_t object_bytes;
};
static_assert(sizeof(Head) == 24 && std::endian::native == std::endian::little);
constexpr std::string_view kMagic = "DSECIDX1";
// What signed offsets can say; also keeps every sum below from overflowing.
constexpr std::uint64_t kMaxObject = std::numeric_limits<std::int64_t>::max();

std::uint64_t chunks_of(std::uint64_t object_bytes) { return (object_bytes + ChunkIndex::kChunkBytes - 1) / ChunkIndex::kChunkBytes; }

}  // namespace

std::uint64_t ChunkIndex::bytes_for(std::uint64_t object_bytes) { return sizeof(Head) + chunks_of(object_bytes) * kDigestBytes; }

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
  const auto wrong = [](const char* what) { return Error(ErrorCode::kDataFault, std::string("chunk index: ") + what); };
  Head head{};
  if (bytes.size() < sizeof head) return wrong("too short");
  std::memcpy(&head, bytes.data(), sizeof head);
  if (std::string_view(head.magic, sizeof head.magic) != kMagic) return wrong("it is none");
  if (head.chunk_bytes != kChunkBytes || head.reserved != 0) return wrong("of a form that is not known");
  if (head.object_bytes > kMaxObject || bytes.size() != bytes_for(head.object_bytes)) return wrong("its length does not fit the object's");
  return ChunkIndex(head.object_bytes, std::string(bytes.substr(sizeof head)));
}

std::string ChunkIndex::bytes() const {
  Head head{.chunk_bytes = kChunkBytes, .object_bytes = object_bytes_};
  std::memcpy(head.magic, kMagic.data(), sizeof head.magic);
  return std::string(reinterpret_cast<const char*>(&head), sizeof head) + digests_;
}

std::size_t ChunkIndex::size_of(std::uint64_t chunk) const { return std::min<std::uint64_t>(kChunkBytes, object_bytes_ - chunk * kChunkBytes); }

bool ChunkIndex::fits(std::uint64_t chunk, std::string_view bytes) const {
  DSEC_CHECK(chunk < chunks());
  if (bytes.size() != size_of(chunk)) return false;
  return model::sha256(bytes) == std::string_view(digests_).substr(chunk * kDigestBytes, kDigestBytes);
}

}  // namespace dsec::origin
