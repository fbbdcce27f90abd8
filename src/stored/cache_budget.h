// How much of the node's disk cached chunks may take, and which go first.
//
// A clock: chunks stand in a row in the order in which they came. When space is
// needed the first one goes, unless it was read again since it was last looked
// at: then it moves to the end. A flood of chunks that are read once passes
// through and does not wash out what sandboxes keep coming back to. What was
// fetched for later and not read yet stands in a row of its own, and goes before
// all else: it takes only room that nobody needs.
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
  void added(const std::shared_ptr<Blob>& blob, std::uint64_t chunk, FetchFor whom = FetchFor::kReader);
  // Keeps room for what is fetched for later, until release(); false when there is none.
  bool reserve(std::uint64_t bytes);
  void release(std::uint64_t bytes);
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
  // With mutex_ held.
  void evict_too_much();
  void evict_unread();
  void gone(const Entry& entry, bool evicted);

  const std::uint64_t limit_bytes_;
  mutable std::mutex mutex_;  // guards what follows; a blob's lock is taken under it, never the other way
  std::deque<Entry> row_;
  std::deque<Entry> unread_;  // for later; what was read since moves to row_ when it is looked at
  std::uint64_t used_bytes_ = 0;
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t evicted_bytes_ = 0;
};

}  // namespace dsec::stored
