#include "edge/output_stream.h"

#include <algorithm>

namespace dsec::edge {

void OutputStream::take(std::uint64_t offset, std::string_view bytes, std::uint64_t& room) {
  if (offset + bytes.size() <= total_) return;
  if (offset < total_) bytes.remove_prefix(total_ - offset);
  if (offset > total_) {
    // The agent lost bytes in between: what was stored stays exact, the rest is counted only.
    storing_ = false;
    window_.clear();
    total_ = offset;
  }
  total_ += bytes.size();
  if (storing_) {
    const auto kept = std::min<std::uint64_t>(room, bytes.size());
    tail_.append(bytes.substr(0, kept));
    room -= kept;
    bytes.remove_prefix(kept);
    if (bytes.empty()) return;
    storing_ = false;
  }
  if (followers_.empty()) return;
  if (window_.empty()) window_offset_ = total_ - bytes.size();
  window_.append(bytes);
}

Result<void> OutputStream::spill(OutputSpool& spool, std::string_view op_id) {
  if (tail_.empty()) return {};
  DSEC_ASSIGN(const OutputSpool::Chunk chunk, spool.append(op_id, number_, tail_offset_, tail_));
  chunks_.push_back(chunk);
  tail_offset_ += tail_.size();
  tail_.clear();
  tail_.shrink_to_fit();
  return {};
}

std::uint64_t OutputStream::acknowledged() const {
  if (storing_) return tail_offset_;
  return window_.empty() ? total_ : window_offset_;
}

std::optional<OutputStream::Piece> OutputStream::at(std::uint64_t offset, std::size_t most) const {
  if (offset >= total_) return std::nullopt;
  if (offset < tail_offset_) {
    const auto behind = std::upper_bound(chunks_.begin(), chunks_.end(), offset,
                                         [](std::uint64_t value, const OutputSpool::Chunk& c) { return value < c.stream_offset; });
    if (behind == chunks_.begin()) return std::nullopt;
    return Piece{.offset = offset, .bytes = {}, .chunk = *std::prev(behind)};
  }
  if (offset < stored()) return Piece{.offset = offset, .bytes = tail_.substr(offset - tail_offset_, most), .chunk = {}};
  if (window_.empty()) return std::nullopt;
  const std::uint64_t from = std::max(offset, window_offset_);
  return Piece{.offset = from, .bytes = window_.substr(from - window_offset_, most), .chunk = {}};
}

std::uint64_t OutputStream::next_readable(std::uint64_t offset) const {
  if (offset < stored()) return offset;
  const std::uint64_t from = window_.empty() ? total_ : window_offset_;
  return std::max(offset, from);
}

void OutputStream::remove_follower(Follower& follower) {
  std::erase(followers_, &follower);
  trim();
}

void OutputStream::trim() {
  if (window_.empty()) return;
  std::uint64_t needed = total_;
  for (const Follower* follower : followers_) needed = std::min(needed, follower->position);
  if (needed <= window_offset_) return;
  window_.erase(0, needed - window_offset_);
  window_offset_ = needed;
}

void OutputStream::restore_chunk(OutputSpool::Chunk chunk) {
  // A chunk that was written twice (the process died before the agent was told) repeats the same bytes.
  if (chunk.stream_offset + chunk.length <= tail_offset_ || chunk.stream_offset > tail_offset_) return;
  const std::uint64_t known = tail_offset_ - chunk.stream_offset;
  chunk.stream_offset += known;
  chunk.file_offset += known;
  chunk.length -= static_cast<std::uint32_t>(known);
  chunks_.push_back(chunk);
  tail_offset_ = chunk.stream_offset + chunk.length;
  total_ = std::max(total_, tail_offset_);
}

void OutputStream::restore_tail(std::uint64_t tail_offset, std::string tail, std::uint64_t total, bool ended) {
  if (tail_offset == tail_offset_) tail_ = std::move(tail);
  total_ = std::max(total, stored());
  storing_ = !ended && total_ == stored();
  ended_ = ended;
}

}  // namespace dsec::edge
