// Which pages of an object were read, and which chunks first.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "origin/access_trace.h"

namespace dsec::stored {

// Not safe on several threads at once.
class FirstTouches {
 public:
  // The order is kept for `window` after the first read; zero: not at all.
  FirstTouches(std::uint64_t object_bytes, Duration window);

  // The range lies inside the object. True for the first read of all.
  bool touch(std::uint64_t offset, std::uint64_t length, Instant now);
  // In whole pages.
  std::uint64_t touched_bytes() const { return touched_pages_ * origin::AccessTrace::kPageBytes; }
  // What was kept, when the window is over; it is given away once.
  std::optional<origin::AccessTrace> take_trace(Instant now);
  void keep_no_order() { keeps_order_ = false; }

 private:
  const std::uint64_t object_bytes_;
  const Duration window_;
  bool keeps_order_;
  std::optional<Instant> first_read_;
  std::uint64_t touched_pages_ = 0;
  std::vector<std::uint64_t> pages_;    // by chunk
  std::vector<origin::Touch> touches_;  // their pages are filled in when they are taken
};

}  // namespace dsec::stored
