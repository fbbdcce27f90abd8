#include "agent/output_stream.h"

#include "base/error.h"

namespace dsec::agent {

void OutputBuffer::append(std::string_view bytes) {
  DSEC_CHECK(bytes.size() <= room());
  bytes_.append(bytes);
}

void OutputBuffer::skip(std::size_t count) {
  clear();
  acked_ += count;
  sent_ = acked_;
}

std::string_view OutputBuffer::take(std::size_t limit) {
  const std::size_t from = start_ + static_cast<std::size_t>(sent_ - acked_);
  const std::string_view out = std::string_view(bytes_).substr(from, limit);
  sent_ += out.size();
  return out;
}

void OutputBuffer::acknowledge(std::uint64_t offset) {
  if (offset <= acked_ || offset > sent_) return;
  start_ += static_cast<std::size_t>(offset - acked_);
  acked_ = offset;
  if (start_ == bytes_.size()) {
    bytes_ = {};  // an idle command holds no memory
    start_ = 0;
  } else if (start_ >= protocol::kOutputWindow / 2) {
    bytes_.erase(0, start_);
    start_ = 0;
  }
}

void OutputBuffer::clear() {
  acked_ = produced();
  sent_ = acked_;
  bytes_ = {};
  start_ = 0;
}

}  // namespace dsec::agent
