#include "stored/first_touches.h"

#include <bit>
#include <limits>

namespace dsec::stored {

using origin::AccessTrace;
using origin::ChunkIndex;

FirstTouches::FirstTouches(std::uint64_t object_bytes, Duration window)
    : object_bytes_(object_bytes), window_(window), keeps_order_(window > Duration::zero()), pages_((object_bytes + ChunkIndex::kChunkBytes - 1) / ChunkIndex::kChunkBytes) {
  // Of larger objects the form of a trace cannot speak.
  if (pages_.size() > std::numeric_limits<std::uint32_t>::max()) keeps_order_ = false;
}

bool FirstTouches::touch(std::uint64_t offset, std::uint64_t length, Instant now) {
  const bool first = !first_read_;
  if (first) first_read_ = now;
  const Duration since = now - *first_read_;
  for (std::uint64_t chunk = offset / ChunkIndex::kChunkBytes; chunk * ChunkIndex::kChunkBytes < offset + length; ++chunk) {
    const std::uint64_t fresh = origin::pages_of(chunk, offset, length) & ~pages_[chunk];
    touched_pages_ += std::popcount(fresh);
    if (keeps_order_ && pages_[chunk] == 0 && since < window_ && touches_.size() < AccessTrace::kMaxTouches)
      touches_.push_back({.chunk = static_cast<std::uint32_t>(chunk), .at_ms = static_cast<std::uint32_t>(since / std::chrono::milliseconds(1))});
    pages_[chunk] |= fresh;
  }
  return first;
}

std::optional<AccessTrace> FirstTouches::take_trace(Instant now) {
  if (!keeps_order_ || !first_read_ || now - *first_read_ < window_) return std::nullopt;
  keeps_order_ = false;
  for (origin::Touch& touch : touches_) touch.pages = pages_[touch.chunk];
  return AccessTrace(object_bytes_, std::move(touches_));
}

}  // namespace dsec::stored
