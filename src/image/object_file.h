// Objects of a shared store, copied to files of this node.
#pragma once

#include <string>

#include "base/clock.h"
#include "origin/chunk_index.h"
#include "origin/origin.h"

namespace dsec::image {

// Both make a new file at `path`, or replace what is there, and leave it behind
// after an error. What they write is synced by who publishes it.

// An object without an index; kDataFault when it has not that many bytes. Who
// uses the file compares its digest.
Result<void> fetch_object(origin::Origin& origin, const origin::ObjectName& name, std::uint64_t bytes, const std::string& path, Deadline deadline);
// A data object: every chunk is checked before it is written.
Result<void> fetch_chunks(origin::Origin& origin, const origin::ObjectName& name, origin::ChunkIndex index, const std::string& path, Deadline deadline);

}  // namespace dsec::image
