// Files with holes that somebody declared.
#include <algorithm>

#include "erofs/content_store.h"

namespace dsec::erofs {

namespace {

constexpr std::uint64_t kMostChunks = 1 << 16;  // of one file

}  // namespace

std::uint8_t smallest_chunk_bits(std::uint64_t file_bytes) {
  std::uint8_t bits = 0;
  while ((file_bytes >> (kBlockBits + bits)) > kMostChunks) bits++;
  return bits;
}

void ContentStore::begin_sparse() {
  chunk_bits_ = smallest_chunk_bits(shape_.bytes);
  in_run_ = false;
  runs_.clear();
}

// Data in a chunk makes the whole chunk data.
Result<void> ContentStore::write_sparse(std::string_view bytes) {
  if (bytes.empty()) return {};
  if (!in_run_) {
    const std::uint64_t start = position_ / chunk_bytes() * chunk_bytes();
    runs_.push_back({static_cast<std::uint32_t>(start / chunk_bytes()), {next_block(), 0}});
    in_run_ = true;
    DSEC_TRY(data_.append_zeros(position_ - start));
  }
  position_ += bytes.size();
  return data_.append(bytes);
}

Result<void> ContentStore::skip_sparse(std::uint64_t bytes) {
  const std::uint64_t target = position_ + bytes;
  if (in_run_) {
    const std::uint64_t chunk_end = (position_ + chunk_bytes() - 1) / chunk_bytes() * chunk_bytes();
    DSEC_TRY(data_.append_zeros(std::min(target, chunk_end) - position_));
    if (target >= chunk_end) end_sparse_run();
  }
  position_ = target;
  return {};
}

void ContentStore::end_sparse_run() {
  BlockRun& run = runs_.back().run;
  run.blocks = next_block() - run.block;
  in_run_ = false;
}

Result<void> ContentStore::settle_sparse() {
  if (in_run_) {
    DSEC_TRY(data_.pad());
    end_sparse_run();
  }
  settled_ = add({.bytes = shape_.bytes, .layout = Layout::kChunked, .chunk_bits = chunk_bits_, .sparse = std::move(runs_)});
  return {};
}

}  // namespace dsec::erofs
