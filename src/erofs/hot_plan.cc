#include "erofs/hot_plan.h"

#include <algorithm>

namespace dsec::erofs {

namespace {

constexpr std::uint64_t kSmallBlocks = 8;  // the kernel reads ahead as much
constexpr std::uint8_t kLargestBits = 6;   // what is fetched by one read is no larger

std::uint32_t first_of(const std::vector<std::uint32_t>& places) { return *std::min_element(places.begin(), places.end()); }

std::uint64_t touched_of(const std::vector<std::uint32_t>& places) {
  return static_cast<std::uint64_t>(std::count_if(places.begin(), places.end(), [](std::uint32_t place) { return place != TouchOrder::kNever; }));
}

// Calls take(first block of the extent, blocks, first touch) for the part of each chunk.
template <typename Take>
void for_each_chunk(std::uint64_t file_block, const std::vector<std::uint32_t>& places, std::uint8_t bits, Take take) {
  const std::uint64_t chunk_blocks = 1ULL << bits;
  for (std::uint64_t at = 0; at < places.size();) {
    const std::uint64_t length = std::min<std::uint64_t>(chunk_blocks - (file_block + at) % chunk_blocks, places.size() - at);
    const auto begin = places.begin() + static_cast<std::ptrdiff_t>(at);
    take(static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(length), *std::min_element(begin, begin + static_cast<std::ptrdiff_t>(length)));
    at += length;
  }
}

}  // namespace

void HotPlan::add(std::uint32_t number, Content& content) {
  std::vector<Extent> extents;
  if (content.layout == Layout::kChunked) {
    for (const SparseRun& sparse : content.sparse)
      extents.push_back({std::uint64_t{sparse.chunk} << content.chunk_bits, sparse.run, order_.places(content.device, sparse.run)});
  } else if (content.run.blocks != 0) {
    extents.push_back({0, content.run, order_.places(content.device, content.run)});
  }
  std::uint64_t blocks = 0;
  std::uint64_t touched = 0;
  for (const Extent& extent : extents) {
    blocks += extent.run.blocks;
    touched += touched_of(extent.places);
  }
  counts_.touched_bytes += touched * kBlockBytes;
  counts_.data_bytes += blocks * kBlockBytes;
  const bool mostly = touched * 4 >= blocks * 3;
  const bool divisible = content.layout == Layout::kFlat || content.layout == Layout::kChunked;
  if (touched == 0 || mostly || blocks <= kSmallBlocks || !divisible) {
    const Warmth warm = mostly || blocks <= kSmallBlocks ? Warmth::kHot : Warmth::kWarm;
    keep_whole(number, content, extents, touched == 0 ? Warmth::kCold : warm);
  } else {
    // The largest chunks that bring at most a tenth of what nobody reads.
    const std::uint8_t least = smallest_chunk_bits(content.bytes);
    std::uint8_t bits = content.layout == Layout::kChunked ? content.chunk_bits : std::max(least, kLargestBits);
    for (; bits > least; bits--) {
      std::uint64_t hot = 0;
      for (const Extent& extent : extents)
        for_each_chunk(extent.file_block, extent.places, bits, [&](std::uint32_t, std::uint32_t length, std::uint32_t place) { hot += place == TouchOrder::kNever ? 0 : length; });
      if (hot * 10 <= touched * 11) break;
    }
    content.layout = Layout::kChunked;
    content.chunk_bits = bits;
    counts_.split_files++;
    split(number, content, extents);
  }
  content.run = {};
  content.sparse.clear();
}

void HotPlan::keep_whole(std::uint32_t number, const Content& content, const std::vector<Extent>& extents, Warmth warmth) {
  std::uint32_t place = TouchOrder::kNever;
  for (const Extent& extent : extents) place = std::min(place, first_of(extent.places));
  for (const Extent& extent : extents) {
    pieces_.push_back({warmth, place, content.device, extent.run, number, static_cast<std::uint32_t>(extent.file_block >> content.chunk_bits)});
    if (warmth == Warmth::kHot) counts_.hot_bytes += std::uint64_t{extent.run.blocks} * kBlockBytes;
    if (warmth == Warmth::kWarm) counts_.warm_bytes += std::uint64_t{extent.run.blocks} * kBlockBytes;
  }
}

void HotPlan::split(std::uint32_t number, const Content& content, const std::vector<Extent>& extents) {
  for (const Extent& extent : extents) {
    bool joins = false;
    for_each_chunk(extent.file_block, extent.places, content.chunk_bits, [&](std::uint32_t at, std::uint32_t length, std::uint32_t place) {
      const Warmth warmth = place == TouchOrder::kNever ? Warmth::kCold : Warmth::kHot;
      if (warmth == Warmth::kHot) counts_.hot_bytes += std::uint64_t{length} * kBlockBytes;
      if (joins && pieces_.back().warmth == warmth) {
        pieces_.back().from.blocks += length;
        pieces_.back().place = std::min(pieces_.back().place, place);
        return;
      }
      joins = true;
      pieces_.push_back({warmth, place, content.device, {extent.run.block + at, length}, number, static_cast<std::uint32_t>((extent.file_block + at) >> content.chunk_bits)});
    });
  }
}

std::vector<HotPiece> HotPlan::take_pieces() {
  std::sort(pieces_.begin(), pieces_.end(), [](const HotPiece& a, const HotPiece& b) { return a.order() < b.order(); });
  return std::move(pieces_);
}

}  // namespace dsec::erofs
