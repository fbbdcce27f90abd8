// Where a file's bytes are, for each of the four layouts, and what they are.
#include <lz4.h>

#include <algorithm>
#include <cstring>

#include "erofs/reader.h"

namespace dsec::erofs {

std::uint64_t index_at(const StoredInode& node) { return (node.body_end() + 7) / 8 * 8; }

namespace {
std::uint64_t chunk_bits(const StoredInode& node) { return kBlockBits + (node.address & kChunkBitsMask); }
std::uint64_t cluster_at(const StoredInode& node, std::uint64_t cluster) {
  return index_at(node) + sizeof(CompressedHeader) + kCompressedIndexGap + cluster * sizeof(ClusterIndex);
}
ClusterType type_of(const ClusterIndex& index) { return static_cast<ClusterType>(index.advice); }
}  // namespace

std::uint64_t chunk_count(const StoredInode& node) {
  const std::uint64_t bits = chunk_bits(node);
  return (node.size >> bits) + ((node.size & ((std::uint64_t{1} << bits) - 1)) != 0 ? 1 : 0);
}

Result<Reader::Place> Reader::place(std::uint64_t block, std::size_t device) const {
  const bool one_file = sources_.size() == 1;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const std::uint64_t start = slots_[i].unified_address;
    if (device == i + 1) {
      if (block >= slots_[i].blocks) return Error(ErrorCode::kDataFault, "block " + std::to_string(block) + " lies beyond its device");
    } else if (device != 0 || block < start || block - start >= slots_[i].blocks) {
      continue;
    } else {
      block -= start;
    }
    return Place{.source = one_file ? 0 : i + 1, .offset = (block + (one_file ? start : 0)) * kBlockBytes, .left = (slots_[i].blocks - block) * kBlockBytes};
  }
  if (device != 0 || block >= superblock_.blocks)
    return Error(ErrorCode::kDataFault, "block " + std::to_string(block) + " lies on no device");
  return Place{.source = 0, .offset = block * kBlockBytes, .left = (superblock_.blocks - block) * kBlockBytes};
}

Result<Extent> Reader::plain(const StoredInode& node, std::uint64_t at, std::uint64_t length, std::uint64_t block, std::size_t device) const {
  DSEC_ASSIGN(const Place found, place(block, device));
  if (length > found.left) return fault_at(node.offset, "the file's content lies beyond its device");
  return Extent{.kind = Extent::Kind::kPlain, .at = at, .length = length, .source = found.source, .offset = found.offset, .stored = length};
}

Result<Extent> Reader::inline_extent(const StoredInode& node, std::uint64_t offset) const {
  // All but the last block, which may be a full one too.
  const std::uint64_t outside = (node.blocks() - 1) * kBlockBytes;
  if (offset < outside) return plain(node, 0, outside, node.address, 0);
  const std::uint64_t length = node.size - outside;
  const std::uint64_t at = node.body_end();
  if (at % kBlockBytes + length > kBlockBytes) return fault_at(node.offset, "content behind the inode crosses a block's end");
  if (length > metadata_bytes() - at) return fault_at(node.offset, "content behind the inode lies beyond the metadata");
  return Extent{.kind = Extent::Kind::kPlain, .at = outside, .length = length, .source = 0, .offset = at, .stored = length};
}

Result<Extent> Reader::chunk_extent(const StoredInode& node, std::uint64_t offset) {
  if ((node.address & ~(kChunkIndexes | kChunkBitsMask)) != 0 || (node.address & kChunkIndexes) == 0)
    return fault_at(node.offset, "the form of the chunks is unknown");
  const std::uint64_t bits = chunk_bits(node);
  const std::uint64_t chunk = offset >> bits;
  DSEC_ASSIGN(const ChunkIndex index, load<ChunkIndex>(index_at(node) + chunk * sizeof(ChunkIndex)));
  const std::uint64_t at = chunk << bits;
  const std::uint64_t length = std::min(std::uint64_t{1} << bits, node.size - at);
  if (index.block == kNoBlock) return Extent{.kind = Extent::Kind::kHole, .at = at, .length = length};
  return plain(node, at, length, index.block, index.device);
}

Result<Extent> Reader::compressed_extent(const StoredInode& node, std::uint64_t offset) {
  DSEC_ASSIGN(const CompressedHeader header, load<CompressedHeader>(index_at(node)));
  if (header.reserved != 0 || header.advice != kBigPieces || header.algorithms != 0 || header.cluster_bits != 0)
    return fault_at(index_at(node), "the form of the compressed content is unknown");
  const std::uint64_t clusters = node.blocks();
  std::uint64_t head = offset / kBlockBytes;
  DSEC_ASSIGN(ClusterIndex index, load<ClusterIndex>(cluster_at(node, head)));
  if (type_of(index) == ClusterType::kInside) {
    const std::uint64_t low = index.place & 0xFFFF;
    const std::uint64_t back = (low & kPieceBlocks) != 0 ? 1 : low;
    if (back == 0 || back > head) return fault_at(cluster_at(node, head), "a cluster's head is out of range");
    head -= back;
    DSEC_ASSIGN(index, load<ClusterIndex>(cluster_at(node, head)));
  }
  const std::uint64_t here = cluster_at(node, head);
  if (head != offset / kBlockBytes && type_of(index) != ClusterType::kHead) return fault_at(here, "a cluster's head is none");
  if (index.offset != 0) return fault_at(here, "a piece does not start with a cluster");
  const std::uint64_t at = head * kBlockBytes;
  if (type_of(index) == ClusterType::kPlain) return plain(node, at, std::min<std::uint64_t>(kBlockBytes, node.size - at), index.place, 0);
  if (type_of(index) != ClusterType::kHead) return fault_at(here, "a cluster of an unknown kind");
  // The followers tell how long the piece is, the first of them how much is stored.
  std::uint64_t covered = 1;
  std::uint64_t stored = 1;
  for (; head + covered < clusters; ++covered) {
    DSEC_ASSIGN(const ClusterIndex next, load<ClusterIndex>(cluster_at(node, head + covered)));
    if (type_of(next) != ClusterType::kInside) break;
    if (covered == 1 && (next.place & kPieceBlocks) != 0) stored = next.place & 0xFFFF & ~std::uint64_t{kPieceBlocks};
    if (covered >= kMaximalPieceBlocks) return fault_at(here, "a piece is too long");
  }
  if (offset >= at + covered * kBlockBytes) return fault_at(here, "a piece does not reach the cluster that names it");
  if (stored == 0 || stored > kMaximalPieceBlocks) return fault_at(here, "a piece is stored in no or too many blocks");
  DSEC_ASSIGN(Extent extent, plain(node, at, stored * kBlockBytes, index.place, 0));
  extent.kind = Extent::Kind::kLz4;
  extent.length = std::min(covered * kBlockBytes, node.size - at);
  return extent;
}

Result<Extent> Reader::extent(const StoredInode& node, std::uint64_t offset) {
  DSEC_CHECK(offset < node.size);
  if (!node.is_file() && !node.is_directory() && !node.is_symlink()) return fault_at(node.offset, "a special file has content");
  switch (node.layout) {
    case Layout::kFlat:
      return plain(node, 0, node.size, node.address, 0);
    case Layout::kInline:
      return inline_extent(node, offset);
    case Layout::kChunked:
      return chunk_extent(node, offset);
    case Layout::kCompressed:
      return compressed_extent(node, offset);
  }
  return fault_at(node.offset, "the layout is unknown");
}

// Leaves the piece in piece_. Its bytes end where the last stored block does,
// and zeros stand before them.
Result<void> Reader::unpack(const Extent& extent) {
  if (!piece_.empty() && piece_source_ == extent.source && piece_offset_ == extent.offset && piece_.size() == extent.length) return {};
  std::vector<char> stored(static_cast<std::size_t>(extent.stored));
  DSEC_TRY(read_source(extent.source, extent.offset, stored));
  const auto first = std::find_if(stored.begin(), stored.end(), [](char byte) { return byte != 0; });
  piece_.assign(static_cast<std::size_t>(extent.length), 0);
  const int got = ::LZ4_decompress_safe(stored.data() + (first - stored.begin()), piece_.data(), static_cast<int>(stored.end() - first), static_cast<int>(piece_.size()));
  if (got < 0 || static_cast<std::uint64_t>(got) != extent.length) {
    piece_.clear();
    return Error(ErrorCode::kDataFault, "a compressed piece of data file " + std::to_string(extent.source) + " at byte " + std::to_string(extent.offset) + " is broken");
  }
  piece_source_ = extent.source;
  piece_offset_ = extent.offset;
  return {};
}

Result<std::size_t> Reader::read(const StoredInode& node, std::uint64_t offset, std::span<char> into) {
  std::size_t done = 0;
  while (done < into.size() && offset < node.size) {
    DSEC_ASSIGN(const Extent run, extent(node, offset));
    const std::uint64_t within = offset - run.at;
    const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(into.size() - done, run.length - within));
    const std::span<char> target = into.subspan(done, part);
    if (run.kind == Extent::Kind::kHole) {
      std::fill(target.begin(), target.end(), '\0');
    } else if (run.kind == Extent::Kind::kPlain) {
      DSEC_TRY(read_source(run.source, run.offset + within, target));
    } else {
      DSEC_TRY(unpack(run));
      std::memcpy(target.data(), piece_.data() + within, part);
    }
    done += part;
    offset += part;
  }
  return done;
}

}  // namespace dsec::erofs
