// Where the contents of a layer go when what is read first is to lie together.
//
// A file of which most is read stays whole, and so does a small one. A large one
// of which little is read becomes chunks: those that are read lie with all that is
// read, the others with what is not. Compressed files stay whole in any case; of
// which little is read, they come between.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "erofs/content_store.h"
#include "erofs/touch_order.h"

namespace dsec::erofs {

enum class Warmth : std::uint8_t { kHot, kWarm, kCold };

// Blocks that lie together before and after.
struct HotPiece {
  Warmth warmth = Warmth::kCold;
  std::uint32_t place = TouchOrder::kNever;  // of the first touch
  std::uint32_t device = 0;
  BlockRun from;
  std::uint32_t content = 0;
  std::uint32_t chunk = 0;  // kChunked: the first one, of the file
  auto order() const { return std::tuple(warmth, place, device, from.block); }
};

struct HotCounts {
  std::uint64_t touched_bytes = 0;  // in pages, of what the layer's files have
  std::uint64_t hot_bytes = 0;      // that now lie first
  std::uint64_t warm_bytes = 0;     // behind them: the compressed files of which little is read
  std::uint64_t data_bytes = 0;     // all
  std::uint64_t split_files = 0;    // contents that became chunks
  bool operator==(const HotCounts&) const = default;
};

class HotPlan {
 public:
  explicit HotPlan(const TouchOrder& order) : order_(order) {}

  // `content` says where it lies in the layer. Its layout and the size of its chunks
  // become what they are to be, and its runs are gone: the pieces have them.
  void add(std::uint32_t number, Content& content);
  // As they are to lie.
  std::vector<HotPiece> take_pieces();
  const HotCounts& counts() const { return counts_; }

 private:
  struct Extent {
    std::uint64_t file_block;
    BlockRun run;
    std::vector<std::uint32_t> places;
  };

  void keep_whole(std::uint32_t number, const Content& content, const std::vector<Extent>& extents, Warmth warmth);
  void split(std::uint32_t number, const Content& content, const std::vector<Extent>& extents);

  const TouchOrder& order_;
  std::vector<HotPiece> pieces_;
  HotCounts counts_;
};

}  // namespace dsec::erofs
