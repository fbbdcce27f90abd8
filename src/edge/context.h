// What the objects of an edge share: made by Edge, borrowed by all.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/random.h"
#include "edge/notifier.h"
#include "edge/wal.h"
#include "edge/wal_records.h"
#include "sys/worker_pool.h"

namespace dsec::edge {

inline std::int64_t unix_ms(WallTime time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

struct Limits {
  std::size_t max_live = 4096;
  std::uint64_t memory_commit_mb = 0;  // sum of the sandboxes' limits; 0 = no bound
  std::uint64_t memory_reserve_mb = 0; // of the node's, for kernel, edge and agents: see Brake; 0 = none
  Duration trim_idle{};                // who is unused for so long gives memory back; 0 = never
  std::string proc = "/proc";          // where the node tells of its memory
  // In memory after their end, with their commands; of those that were deleted on
  // request, whose commands go at once, fewer. The history has all.
  std::size_t max_ended = 1000;
  std::size_t max_deleted = 128;
  Duration keep_ended = std::chrono::hours(1);
  std::size_t max_history = 100'000;
  Duration keep_history = std::chrono::hours(24 * 7);
  Duration keep_keys = std::chrono::hours(24);
  std::size_t max_keys = 200'000;      // the oldest go first
  std::size_t max_execs = 10000;       // remembered, in each sandbox
  std::size_t max_running_execs = 512; // at once, in each sandbox
  std::uint64_t spool_bytes = 1ULL << 30;       // for each sandbox
  std::size_t inline_output_bytes = 512 << 10;  // of finished commands in memory, for each sandbox
  Duration launch_deadline = std::chrono::seconds(30);
  Duration ready_deadline = std::chrono::seconds(120);
  Duration destroy_deadline = std::chrono::seconds(20);
  Duration channel_deadline = std::chrono::seconds(5);  // a lost channel is back by then, or the sandbox is over
  Duration resend_grace = std::chrono::seconds(2);      // for output that is sent again after a reconnect
  Duration kill_grace = std::chrono::seconds(5);
  Duration freeze_deadline = std::chrono::seconds(10);  // until every process stands
  Duration frozen_deadline = std::chrono::minutes(10);  // a pack that reads longer is given up
  Duration resume_deadline = std::chrono::seconds(30);  // of a request that has none, for what it needs to be back
  Duration reclaim_deadline = std::chrono::minutes(2);
};

struct Context {
  boost::asio::io_context& io;
  const Clock& clock;
  Random& random;
  Wal* wal;  // set once the log is open
  sys::WorkerPool& launches;  // launch and destroy: milliseconds each
  sys::WorkerPool& calls;     // short calls: operations, usage, spool reads
  sys::WorkerPool& packs;     // one thread a pack, for minutes
  sys::WorkerPool& freezes;   // freeze and thaw: a millisecond, or their deadline
  sys::WorkerPool& reclaims;  // of paused sandboxes' memory: few at once, each may take seconds
  const Limits& limits;
  std::string sandbox_directory;  // <data>/edge/sandboxes
  std::string scratch;            // of agent channels
  std::uint64_t epoch = 0;
  // What an earlier life left has been removed; a launch before that would be
  // taken for a part of it.
  bool swept = false;
  Notifier swept_now;
  bool stopping = false;  // of this process: who waits for a sandbox is answered as things stand

  std::int64_t now_ms() const { return unix_ms(clock.wall_now()); }
  template <typename Record>
  Result<std::uint64_t> log(WalType type, const Record& record) {
    return wal->append(static_cast<std::uint8_t>(type), encode(record));
  }
};

}  // namespace dsec::edge
