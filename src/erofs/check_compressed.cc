// The index of a compressed file: pieces of whole clusters, stored in a row.
#include <algorithm>
#include <array>
#include <cstddef>

#include "erofs/check_state.h"

namespace dsec::erofs {
namespace {

class IndexWalk {
 public:
  IndexWalk(CheckState& state, const StoredInode& node)
      : state_(state), clusters_(node.blocks()), at_(index_at(node) + sizeof(CompressedHeader) + kCompressedIndexGap) {}

  std::uint64_t offset_of(std::uint64_t cluster) const { return at_ + cluster * sizeof(ClusterIndex); }
  std::uint64_t end() const { return offset_of(clusters_); }
  std::uint64_t first_block() const { return first_; }
  std::uint64_t blocks() const { return blocks_; }

  Result<void> run() {
    for (std::uint64_t cluster = 0; cluster < clusters_;) {
      DSEC_ASSIGN(const std::uint64_t covered, piece(cluster));
      cluster += covered;
    }
    return {};
  }

 private:
  Result<ClusterIndex> entry(std::uint64_t cluster) {
    DSEC_ASSIGN(const ClusterIndex index, state_.reader.load<ClusterIndex>(offset_of(cluster)));
    if (index.advice > static_cast<std::uint16_t>(ClusterType::kInside) || index.offset != 0) return state_.refuse(offset_of(cluster), "a cluster of an unknown form");
    return index;
  }

  static bool inside(const ClusterIndex& index) { return index.advice == static_cast<std::uint16_t>(ClusterType::kInside); }

  // Clusters that the piece starting at `cluster` covers.
  Result<std::uint64_t> piece(std::uint64_t cluster) {
    DSEC_ASSIGN(const ClusterIndex head, entry(cluster));
    if (inside(head)) return state_.refuse(offset_of(cluster), "a cluster belongs to no piece");
    if (blocks_ == 0) first_ = head.place;
    if (head.place != first_ + blocks_) return state_.refuse(offset_of(cluster), "the pieces of a file are not in a row");
    if (head.advice == static_cast<std::uint16_t>(ClusterType::kPlain)) {
      blocks_++;
      return std::uint64_t{1};
    }
    std::uint64_t covered = 1;
    for (; cluster + covered < clusters_; ++covered) {
      DSEC_ASSIGN(const ClusterIndex next, entry(cluster + covered));
      if (!inside(next)) break;
      if (covered == kMaximalPieceBlocks) return state_.refuse(offset_of(cluster), "a piece is too long");
    }
    DSEC_TRY(followers(cluster, covered));
    return covered;
  }

  Result<void> followers(std::uint64_t cluster, std::uint64_t covered) {
    if (covered == 1) return state_.refuse(offset_of(cluster), "a piece of one cluster is compressed");
    for (std::uint64_t i = 1; i < covered; ++i) {
      DSEC_ASSIGN(const ClusterIndex next, entry(cluster + i));
      const std::uint64_t back = next.place & 0xFFFF;
      const std::uint64_t on = next.place >> 16;
      if (on != covered - i) return state_.refuse(offset_of(cluster + i), "a cluster does not know the next piece");
      if (i > 1 && back != i) return state_.refuse(offset_of(cluster + i), "a cluster does not know its piece");
      if (i > 1) continue;
      const std::uint64_t stored = back ^ kPieceBlocks;
      if (stored == 0 || stored >= covered || stored > state_.piece_blocks) return state_.refuse(offset_of(cluster + i), "a piece is not smaller than what it covers");
      blocks_ += stored;
    }
    return {};
  }

  CheckState& state_;
  const std::uint64_t clusters_;
  const std::uint64_t at_;
  std::uint64_t first_ = 0;
  std::uint64_t blocks_ = 0;
};

bool lies_in_one_part(const Reader& reader, std::uint64_t first, std::uint64_t blocks) {
  const auto within = [&](std::uint64_t begin, std::uint64_t length) { return first >= begin && first - begin <= length && blocks <= length - (first - begin); };
  if (within(0, reader.superblock().blocks)) return true;
  return std::any_of(reader.devices().begin(), reader.devices().end(), [&](const DeviceSlot& slot) { return within(slot.unified_address, slot.blocks); });
}

}  // namespace

Result<void> check_compressed(CheckState& state, const StoredInode& node) {
  if (state.reader.superblock().compression == 0) return state.refuse(node.offset, "compressed content without the feature");
  const std::uint64_t begin = index_at(node);
  if (node.size == 0 || node.blocks() > state.reader.metadata_bytes() / sizeof(ClusterIndex)) return state.refuse(node.offset, "the number of clusters is wrong");
  IndexWalk walk(state, node);
  DSEC_TRY(state.take(node.offset, begin, walk.end()));
  using Head = std::array<std::uint8_t, sizeof(CompressedHeader) + kCompressedIndexGap>;
  DSEC_ASSIGN(const Head head, state.reader.load<Head>(begin));
  Head ours{};
  ours[offsetof(CompressedHeader, advice)] = kBigPieces;
  if (head != ours) return state.refuse(begin, "the form of the compressed content is unknown");
  DSEC_TRY(walk.run());
  if (walk.blocks() != node.address) return state.refuse(node.offset, "the number of stored blocks is wrong");
  if (!lies_in_one_part(state.reader, walk.first_block(), walk.blocks())) return state.refuse(node.offset, "the content lies beyond its data file");
  const std::uint64_t at = walk.first_block() * kBlockBytes;
  if (!state.occupancy.add(Occupancy::Kind::kPacked, at, at + walk.blocks() * kBlockBytes, state.directory)) return state.refuse(node.offset, "structures overlap");
  return {};
}

}  // namespace dsec::erofs
