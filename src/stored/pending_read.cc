#include "stored/pending_read.h"

#include <algorithm>
#include <cstring>

namespace dsec::stored {

void PendingRead::fill(std::uint64_t at, std::string_view bytes) {
  const std::uint64_t from = std::max(at, offset_);
  const std::uint64_t to = std::min(at + bytes.size(), offset_ + length_);
  if (from >= to) return;
  std::call_once(allocated_, [this] { bytes_ = origin::Buffer(length_); });
  std::memcpy(bytes_.data() + (from - offset_), bytes.data() + (from - at), to - from);
}

void PendingRead::fail(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = error;
}

void PendingRead::part_done() {
  if (parts_.fetch_sub(1) != 1) return;
  if (error_) answer_(*error_);
  else answer_(bytes_.view());
}

}  // namespace dsec::stored
