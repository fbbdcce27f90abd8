// Data objects as zstd frames of one chunk each (packed_table.h): made and read.
#pragma once

#include <memory>

#include "origin/origin.h"
#include "origin/packed_table.h"

namespace dsec::origin {

// Of zstd. 9 takes 50 ms a MiB, 19 seven times as long and makes a twentieth less;
// reading costs the same.
inline constexpr int kUsualLevel = 9;
inline constexpr int kHighestLevel = 19;

// `content` in its packed form, in an unnamed file of $TMPDIR or /var/tmp.
// kDataFault when the content's bytes are not what its digest says. Blocks for as
// long as it takes, but not past the deadline.
Result<Content> pack(const Content& content, Deadline deadline, int level = kUsualLevel);

// The data object that `packed` holds. What its frames bring is bounded by the
// table; a frame that is no chunk is kDataFault, one of another chunk is not
// noticed here.
Result<std::unique_ptr<Object>> open_packed(std::unique_ptr<Object> packed, Deadline deadline);

}  // namespace dsec::origin
