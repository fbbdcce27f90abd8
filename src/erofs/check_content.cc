// What an inode holds: where its bytes lie, and that they may lie there.
#include <algorithm>
#include <vector>

#include "erofs/check_state.h"

namespace dsec::erofs {
namespace {

constexpr std::uint64_t kMaximalTarget = 4095;
constexpr std::uint64_t kSmallestDirectory = 2 * sizeof(DirectoryEntry) + 3;  // "." and ".."

std::uint64_t whole_blocks(std::uint64_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }

// Directories and links are structures: in the metadata, and nobody else's.
// Content in a data file takes whole blocks; in the metadata the zeros behind
// it are checked with all others.
Result<void> own(CheckState& state, const StoredInode& node, const Extent& extent) {
  const bool in_metadata = extent.offset < state.reader.metadata_bytes();
  if (in_metadata && !node.is_file()) return state.take(node.offset, extent.offset, extent.offset + extent.stored);
  if (!node.is_file()) return state.refuse(node.offset, "a directory or link whose content is not in the metadata");
  const std::uint64_t bytes = in_metadata ? extent.stored : whole_blocks(extent.stored);
  if (!state.occupancy.add(Occupancy::Kind::kContent, extent.offset, extent.offset + bytes, state.directory))
    return state.refuse(node.offset, "structures overlap");
  return {};
}

Result<void> check_plain(CheckState& state, const StoredInode& node) {
  const bool outside = node.layout == Layout::kFlat ? node.size > 0 : node.blocks() > 1;
  if (node.layout == Layout::kInline && node.size == 0) return state.refuse(node.offset, "nothing stands behind the inode");
  if (outside != (node.address != kNoBlock)) return state.refuse(node.offset, "the address and the size do not go together");
  if (outside) {
    DSEC_ASSIGN(const Extent extent, state.reader.extent(node, 0));
    DSEC_TRY(own(state, node, extent));
  }
  if (node.layout == Layout::kInline) {
    DSEC_ASSIGN(const Extent tail, state.reader.extent(node, node.size - 1));
    DSEC_TRY(state.take(node.offset, tail.offset, tail.offset + tail.length));
  }
  return {};
}

Result<void> check_chunks(CheckState& state, const StoredInode& node) {
  if ((state.reader.superblock().incompatible_features & kChunkedFiles) == 0) return state.refuse(node.offset, "chunks without the feature");
  if ((node.address & ~(kChunkIndexes | kChunkBitsMask)) != 0 || (node.address & kChunkIndexes) == 0)
    return state.refuse(node.offset, "the form of the chunks is unknown");
  const std::uint64_t index = index_at(node);
  const std::uint64_t count = chunk_count(node);
  if (count == 0 || count > state.reader.metadata_bytes() / sizeof(ChunkIndex)) return state.refuse(node.offset, "the number of chunks is wrong");
  DSEC_TRY(state.take(node.offset, index, index + count * sizeof(ChunkIndex)));
  for (std::uint64_t at = 0, i = 0; at < node.size; ++i) {
    const std::uint64_t here = index + i * sizeof(ChunkIndex);
    DSEC_ASSIGN(const ChunkIndex entry, state.reader.load<ChunkIndex>(here));
    const bool hole = entry.block == kNoBlock;
    if (entry.reserved != 0 || (hole && entry.device != 0)) return state.refuse(here, "a chunk's reserved bytes are not zero");
    DSEC_ASSIGN(const Extent extent, state.reader.extent(node, at));
    if (!hole) DSEC_TRY(own(state, node, extent));
    at += extent.length;
  }
  return {};
}

Result<void> check_target(CheckState& state, const StoredInode& node) {
  if (node.size == 0 || node.size > kMaximalTarget) return state.refuse(node.offset, "a link's target is empty or too long");
  DSEC_ASSIGN(const std::string target, state.reader.link_target(node));
  if (target.find('\0') != std::string::npos) return state.refuse(node.offset, "a link's target has a zero in it");
  return {};
}

}  // namespace

Result<void> check_content(CheckState& state, const StoredInode& node) {
  if (node.is_directory() && node.size < kSmallestDirectory) return state.refuse(node.offset, "a directory has no room for itself and its parent");
  if (node.is_file() && node.size > state.limits.file_bytes) return state.refuse(node.offset, "a file is larger than the limit");
  // As soon as this holds, lies about a directory's size cost at most one read of the metadata.
  if (!node.is_file() && node.size > state.reader.metadata_bytes()) return state.refuse(node.offset, "a directory or link is larger than the metadata");
  if (node.layout == Layout::kFlat || node.layout == Layout::kInline) {
    DSEC_TRY(check_plain(state, node));
    return node.is_symlink() ? check_target(state, node) : Result<void>();
  }
  if (!node.is_file()) return state.refuse(node.offset, "a directory or link of an indexed layout");
  return node.layout == Layout::kChunked ? check_chunks(state, node) : check_compressed(state, node);
}

}  // namespace dsec::erofs
