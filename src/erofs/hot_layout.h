// A layer rewritten so that what is read first of its data lies first and together,
// in the order of first touch: the same entries with the same content, metadata
// that says where it is now, and one data file.
//
// The same layer and the same touches make the same bytes. The layer's own data
// files are only read; the new image refers to none of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "erofs/hot_plan.h"
#include "erofs/reader.h"
#include "erofs/writer.h"

namespace dsec::erofs {

struct HotLayoutOptions {
  std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)> on_progress;
  const std::atomic<bool>* cancelled = nullptr;
};

// `layer` has its data at hand, and the checker found it sound. `writer` is empty,
// was made with Overlaps::kRefuse and no parents, and is finished by the caller.
// kInvalidArgument when nothing of the layer's content was touched; kUnsupported for
// an image of another form than the writer's, and for one layer of an image.
Result<HotCounts> lay_out_by_touch(Reader& layer, const std::vector<TouchedRun>& touched, const HotLayoutOptions& options, Writer& writer);

}  // namespace dsec::erofs
