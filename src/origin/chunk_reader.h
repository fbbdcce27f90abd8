// Reads a data object in checked chunks: the one way to read a part of it.
#pragma once

#include <memory>
#include <mutex>

#include "origin/chunk_index.h"
#include "origin/origin.h"

namespace dsec::origin {

struct ReadPatience {
  int attempts = 3;
  Duration each = std::chrono::seconds(10);  // and never past the call's own deadline
};

// Opens its object at the first read, so that making one never blocks. Any
// number of threads may read. Outlived by the origin.
class ChunkReader {
 public:
  ChunkReader(Origin& origin, ObjectName name, ChunkIndex index, ReadPatience patience = {});

  const ChunkIndex& index() const { return index_; }
  // Chunks [first, first + count) behind one another, by one ranged read. An
  // attempt that fails, or brings bytes that do not fit the index, is made again
  // (not for kNotFound and kPermissionDenied). kDataFault when the last one
  // brought wrong bytes or the object has another size; else what the origin said.
  Result<Buffer> read(std::uint64_t first, std::uint64_t count, Deadline deadline);

 private:
  Result<Buffer> attempt(std::uint64_t first, std::uint64_t count, Deadline deadline);
  Result<std::shared_ptr<const Object>> object(Deadline deadline);

  Origin& origin_;
  const ObjectName name_;
  const ChunkIndex index_;
  const ReadPatience patience_;
  std::mutex mutex_;  // guards open_; never held over a call of the origin
  std::shared_ptr<const Object> open_;
};

}  // namespace dsec::origin
