#include "origin/chunked_head.h"

#include <bit>
#include <cstring>
#include <limits>

#include "origin/chunk_index.h"

namespace dsec::origin {

namespace {

struct Form {
  char magic[8];
  std::uint32_t chunk_bytes;
  std::uint32_t number;
  std::uint64_t object_bytes;
};
static_assert(sizeof(Form) == ChunkedHead::kBytes && std::endian::native == std::endian::little);

}  // namespace

std::string to_bytes(std::string_view magic, const ChunkedHead& head) {
  Form form{.chunk_bytes = ChunkIndex::kChunkBytes, .number = head.number, .object_bytes = head.object_bytes};
  std::memcpy(form.magic, magic.data(), sizeof form.magic);
  return std::string(reinterpret_cast<const char*>(&form), sizeof form);
}

Result<ChunkedHead> parse_head(std::string_view bytes, std::string_view magic, const char* what) {
  const auto wrong = [what](const char* why) { return Error(ErrorCode::kDataFault, std::string(what) + ": " + why); };
  Form form{};
  if (bytes.size() < sizeof form) return wrong("too short");
  std::memcpy(&form, bytes.data(), sizeof form);
  if (std::string_view(form.magic, sizeof form.magic) != magic) return wrong("it is none");
  if (form.chunk_bytes != ChunkIndex::kChunkBytes) return wrong("of a form that is not known");
  if (form.object_bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return wrong("of too large an object");
  return ChunkedHead{.number = form.number, .object_bytes = form.object_bytes};
}

}  // namespace dsec::origin
