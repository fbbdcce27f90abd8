// How much of the node's disk cached chunks may take, and which go first.
//
// A clock: chunks stand in a row in the order in which they came. When space is
// needed the first one goes, unless it was read again since it was last looked
// at: then it moves to the end. A flood of chunks that are read once passes
// through and does not wash out what sandboxes keep coming back to.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "stored/blob.h"

namespace dsec::stored {

// Safe on any thread.
class CacheBudget {
 public:
  explicit CacheBudget(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // The chunk is on disk now; evicts what is too much.
  void added(const std::shared_ptr<Blob>& blob, std::uint64_t chunk);
  // The object is no longer cached but owned by somebody else, or gone.
  void forget(const Blob* blob);
  std::uint64_t used_bytes() const;
  std::uint64_t evicted_bytes() const;

 private:
  struct Entry {
    std::weak_ptr<Blob> blob;
    const Blob* address = nullptr;
    std::uint64_t chunk = 0;
    std::uint64_t bytes = 0;
  };
  void evict_too_much();  // with mutex_ held

  const std::uint64_t limit_bytes_;
  mutable std::mutex mutex_;  // guards what follows; a blob's lock is taken under it, never the other way
  std::deque<Entry> row_;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t evicted_bytes_ = 0;
};

}  // namespace dsec::stored
