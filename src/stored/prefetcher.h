// Reads ahead what another node's trace says will be read, below all that readers
// ask for, and leaves a trace where there is none.
//
// Strictly below: its fetches run on threads of their own and begin only while
// demand has threads to spare, the node is not under pressure, and the cache has
// room that nobody needs. A trace is a hint that may be wrong: what was fetched
// and not read stays below a fixed number of bytes or half of all, so that a wrong
// one stops itself; and when its window is over, an object of whose prefetched
// bytes less than half were read is not prefetched again on this node.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "origin/access_trace.h"
#include "origin/origin.h"
#include "stored/blob.h"
#include "stored/cache_budget.h"
#include "stored/pressure.h"

namespace dsec::stored {

struct PrefetchLimits {
  std::size_t threads = 4;  // each has at most 1 MiB on its way
  std::uint64_t bytes_per_second = 128 << 20;
  std::uint64_t lead_bytes = 32 << 20;  // of what was fetched and not read
  // After an object's first read: how long its trace is recorded and prefetched.
  Duration window = std::chrono::seconds(120);
  std::string pressure_folder = "/proc/pressure";
};

// Safe on any thread.
class Prefetcher {
 public:
  struct Node {
    origin::Origin& origin;
    CacheBudget& budget;
    std::string state;  // folder; <hex>.prefetch says how it went (prefetch_verdict.h)
    // Fetches what was claimed for later. Blocks.
    std::function<void(const std::shared_ptr<Blob>&, ChunkRun)> fetch;
    std::function<bool()> demand_is_busy;
  };
  Prefetcher(PrefetchLimits limits, Node node);
  // Waits for what is on its way.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // The object was read for the first time.
  void begin(const std::shared_ptr<Blob>& blob);
  // Once in a while: publishes traces and judges, where the window is over.
  void look_around(Instant now);

 private:
  struct Watched {
    std::weak_ptr<Blob> blob;
    Instant begun;
  };
  struct Plan {
    Watched of;
    std::vector<origin::Touch> touches;
    std::size_t next = 0;
  };
  struct Step {
    std::shared_ptr<Blob> blob;
    std::vector<ChunkRun> runs;
    std::uint64_t reserved_bytes = 0;
  };

  void work();
  // With mutex_ held.
  std::optional<Step> next_step(Instant now);
  bool may_begin(Instant now);
  // Nothing for now; an exhausted plan is at its end.
  std::optional<Step> step_of(Plan& plan, const std::shared_ptr<Blob>& blob, Instant now);
  bool far_enough_ahead(const Blob& blob) const;

  void load(const Watched& watched);
  void conclude(const Watched& watched);

  const PrefetchLimits limits_;
  const Node node_;
  Pressure pressure_;
  std::mutex mutex_;  // guards what follows; a blob's and the budget's lock are taken under it
  std::condition_variable wake_;
  bool stopping_ = false;
  std::deque<std::function<void()>> jobs_;
  std::deque<Plan> plans_;
  std::vector<Watched> watched_;
  Instant next_at_{};  // by the rate
  std::vector<std::thread> threads_;
};

}  // namespace dsec::stored
