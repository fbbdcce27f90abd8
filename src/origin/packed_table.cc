#include "origin/packed_table.h"

#include <algorithm>
#include <cstring>

namespace dsec::origin {

namespace {

constexpr std::string_view kMagic = "DSECZST1";
constexpr std::uint64_t kChunk = ChunkIndex::kChunkBytes;
constexpr std::uint64_t kMaxObject = 8ull << 40;  // of a table of 128 MiB

Error wrong(const char* what) { return {ErrorCode::kDataFault, std::string("compressed data: ") + what}; }

std::uint64_t chunks_of(std::uint64_t object_bytes) { return (object_bytes + kChunk - 1) / kChunk; }
std::uint64_t size_in(std::uint64_t object_bytes, std::uint64_t chunk) { return std::min(kChunk, object_bytes - chunk * kChunk); }

Result<std::uint64_t> announced_bytes(std::string_view bytes) {
  DSEC_ASSIGN(const ChunkedHead head, parse_head(bytes, kMagic, "compressed data"));
  if (head.number != 0) return wrong("of a form that is not known");
  if (head.object_bytes > kMaxObject) return wrong("of too large an object");
  return head.object_bytes;
}

}  // namespace

std::uint64_t PackedTable::bytes_for(std::uint64_t object_bytes) { return ChunkedHead::kBytes + chunks_of(object_bytes) * sizeof(std::uint32_t); }

Result<std::uint64_t> PackedTable::table_bytes(std::string_view head, std::uint64_t packed_bytes) {
  DSEC_ASSIGN(const std::uint64_t object_bytes, announced_bytes(head));
  const std::uint64_t bytes = bytes_for(object_bytes);
  if (bytes > packed_bytes) return wrong("its table is longer than itself");
  return bytes;
}

Result<PackedTable> PackedTable::parse(std::string_view bytes, std::uint64_t packed_bytes) {
  DSEC_ASSIGN(const std::uint64_t object_bytes, announced_bytes(bytes));
  if (bytes.size() != bytes_for(object_bytes)) return wrong("its table's length does not fit the object's");
  std::vector<std::uint32_t> lengths(chunks_of(object_bytes));
  if (!lengths.empty()) std::memcpy(lengths.data(), bytes.data() + ChunkedHead::kBytes, lengths.size() * sizeof(std::uint32_t));
  for (std::uint64_t chunk = 0; chunk < lengths.size(); ++chunk)
    if (lengths[chunk] == 0 || lengths[chunk] > size_in(object_bytes, chunk)) return wrong("a frame has a length that none has");
  PackedTable table(object_bytes, lengths);
  if (table.starts_.back() != packed_bytes) return wrong("its frames are not as long as itself");
  return table;
}

PackedTable::PackedTable(std::uint64_t object_bytes, const std::vector<std::uint32_t>& lengths) : object_bytes_(object_bytes) {
  starts_.reserve(lengths.size() + 1);
  starts_.push_back(bytes_for(object_bytes));
  for (const std::uint32_t length : lengths) starts_.push_back(starts_.back() + length);
}

std::string PackedTable::bytes() const {
  std::string out = to_bytes(kMagic, {.object_bytes = object_bytes_});
  for (std::uint64_t chunk = 0; chunk < chunks(); ++chunk) {
    const auto length = static_cast<std::uint32_t>(length_of(chunk));
    out.append(reinterpret_cast<const char*>(&length), sizeof length);
  }
  return out;
}

std::size_t PackedTable::size_of(std::uint64_t chunk) const { return size_in(object_bytes_, chunk); }

}  // namespace dsec::origin
