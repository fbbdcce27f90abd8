// What a command printed on one descriptor and the edge has not stored yet.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/agent_messages.h"

namespace dsec::agent {

// Invariant: acked() <= sent() <= produced() <= acked() + kOutputWindow.
class OutputBuffer {
 public:
  std::uint64_t acked() const { return acked_; }
  std::uint64_t sent() const { return sent_; }
  std::uint64_t produced() const { return acked_ + bytes_.size() - start_; }
  std::size_t room() const { return protocol::kOutputWindow - static_cast<std::size_t>(produced() - acked_); }

  // At most room() bytes.
  void append(std::string_view bytes);
  // Counts bytes that nobody will ask for.
  void skip(std::size_t count);
  // Up to `limit` unsent bytes, valid until the next call; they count as sent.
  std::string_view take(std::size_t limit);
  // All below `offset` is stored. An offset that cannot be is ignored.
  void acknowledge(std::uint64_t offset);
  // All that is not acknowledged is to be sent again.
  void rewind() { sent_ = acked_; }
  void clear();

 private:
  std::string bytes_;  // from start_ on: the bytes from acked_ on
  std::size_t start_ = 0;
  std::uint64_t acked_ = 0;
  std::uint64_t sent_ = 0;
};

}  // namespace dsec::agent
