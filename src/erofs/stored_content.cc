#include "erofs/stored_content.h"

#include <algorithm>

namespace dsec::erofs {

namespace {

std::uint32_t blocks_of(std::uint64_t bytes) { return static_cast<std::uint32_t>((bytes + kBlockBytes - 1) / kBlockBytes); }

// Grows by runs that lie behind one another on one device.
class RunJoin {
 public:
  bool add(const Extent& extent) {
    if (extent.source == 0 || extent.offset % kBlockBytes != 0) return false;
    const BlockRun part{static_cast<std::uint32_t>(extent.offset / kBlockBytes), blocks_of(extent.stored)};
    if (run_.blocks == 0) {
      device_ = static_cast<std::uint32_t>(extent.source);
      run_.block = part.block;
    }
    if (extent.source != device_ || part.block != run_.block + run_.blocks) return false;
    run_.blocks += part.blocks;
    return true;
  }
  std::uint32_t device() const { return device_; }
  BlockRun run() const { return run_; }

 private:
  std::uint32_t device_ = 0;
  BlockRun run_{};
};

Result<std::optional<Content>> describe_plain(Reader& reader, const StoredInode& file, std::uint64_t room, std::string& tail) {
  Content content{.bytes = file.size, .layout = file.layout};
  const std::uint64_t outside = file.layout == Layout::kFlat ? file.size : (file.blocks() - 1) * kBlockBytes;
  if (outside != 0) {
    DSEC_ASSIGN(const Extent extent, reader.extent(file, 0));
    RunJoin join;
    if (extent.length != outside || !join.add(extent)) return std::optional<Content>();
    content.device = join.device();
    content.run = join.run();
  }
  if (outside == file.size) return std::optional(std::move(content));
  if (file.size - outside > room) return std::optional<Content>();
  tail.resize(static_cast<std::size_t>(file.size - outside));
  DSEC_ASSIGN(const std::size_t got, reader.read(file, outside, tail));
  DSEC_CHECK(got == tail.size());
  content.tail = tail;
  return std::optional(std::move(content));
}

// Pieces of 64 KiB from the file's start, each stored behind the last.
Result<std::optional<Content>> describe_compressed(Reader& reader, const StoredInode& file) {
  Content content{.bytes = file.size, .layout = Layout::kCompressed};
  RunJoin join;
  for (std::uint64_t begin = 0; begin < file.size; begin += kPieceBytes) {
    const std::uint64_t end = std::min<std::uint64_t>(begin + kPieceBytes, file.size);
    char stored = 0;
    for (std::uint64_t at = begin; at < end;) {
      DSEC_ASSIGN(const Extent extent, reader.extent(file, at));
      if (extent.at != at || !join.add(extent)) return std::optional<Content>();
      if (extent.kind == Extent::Kind::kLz4) {
        if (at != begin || extent.length != end - begin || extent.stored > kPieceBytes) return std::optional<Content>();
        stored = static_cast<char>(blocks_of(extent.stored));
      }
      at += extent.length;
    }
    content.pieces.push_back(stored);
  }
  content.device = join.device();
  content.run = join.run();
  return std::optional(std::move(content));
}

Result<std::optional<Content>> describe_chunks(Reader& reader, const StoredInode& file) {
  Content content{.bytes = file.size, .layout = Layout::kChunked, .chunk_bits = static_cast<std::uint8_t>(file.address & kChunkBitsMask)};
  const std::uint64_t chunk_bytes = std::uint64_t{kBlockBytes} << content.chunk_bits;
  for (std::uint64_t at = 0; at < file.size; at += chunk_bytes) {
    DSEC_ASSIGN(const Extent extent, reader.extent(file, at));
    if (extent.kind == Extent::Kind::kHole) continue;
    RunJoin join;
    if (!join.add(extent) || (content.device != 0 && content.device != join.device())) return std::optional<Content>();
    content.device = join.device();
    content.sparse.push_back({static_cast<std::uint32_t>(at / chunk_bytes), join.run()});
  }
  return std::optional(std::move(content));
}

}  // namespace

Result<std::optional<Content>> describe_content(Reader& reader, const StoredInode& file, std::uint64_t room, std::string& tail) {
  DSEC_CHECK(file.is_file() && file.size != 0);
  switch (file.layout) {
    case Layout::kFlat:
    case Layout::kInline: return describe_plain(reader, file, room, tail);
    case Layout::kCompressed: return describe_compressed(reader, file);
    case Layout::kChunked: return describe_chunks(reader, file);
  }
  die("unknown layout");
}

}  // namespace dsec::erofs
