// A layer whose data is laid out anew by what somebody read of it (docs/adr/0027).
#pragma once

#include <map>
#include <string>

#include "base/result.h"
#include "erofs/hot_layout.h"
#include "image/layer_store.h"

namespace dsec::image {

// By the hex digest of a data object: the bytes of its access trace (origin/access_trace.h).
using TracesByData = std::map<std::string, std::string>;
// A trace that somebody brings says of no object by name that it is of it: the layer
// has to have one data object only, and the trace has to be of its size. kInvalidArgument.
Result<TracesByData> trace_of_only_data(const LayerStore& store, const std::string& digest, const std::string& trace);

struct OptimizedFiles {
  model::LayerRecord record;  // without digest and sizes, which publishing fills in
  erofs::HotCounts counts;
};

// Writes layer.meta and layer.data in `directory`, which lies on the store's file
// system. `traces` are of data objects that the layer names; what it says of others is
// passed over. kDataFault for a trace that is none; else as erofs::lay_out_by_touch().
Result<OptimizedFiles> optimize_layer(const LayerStore& store, const std::string& digest, const TracesByData& traces, const std::string& directory, const erofs::HotLayoutOptions& options);

}  // namespace dsec::image
