// Whether prefetching an object helped on this node: <hex>.prefetch in the state
// folder, {"off":…,"prefetched_bytes":…,"useful_bytes":…}. Who removes the file
// lets it be tried again.
#pragma once

#include <string>

#include "base/result.h"
#include "stored/blob.h"

namespace dsec::stored {

inline constexpr const char* kVerdictSuffix = ".prefetch";

// Nothing is written of less than 4 MiB that were prefetched: that says nothing.
Result<void> save_verdict(const std::string& state, const std::string& hex, const BlobCounts& counts);
bool prefetch_is_off(const std::string& state, const std::string& hex);

}  // namespace dsec::stored
