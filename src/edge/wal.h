// The write-ahead log of an edge: what a restart has to know.
//
// append() writes to the page cache before it returns, on the event loop: a
// killed process has lost nothing that it appended. commit() waits for stable
// storage, in groups, on a thread of its own: a lost machine has lost nothing
// that was committed. Sandboxes die with the machine, so only what must outlive
// them (an idempotency key that was answered) is committed; the rest is appended.
//
// Below the directory: segments <sequence, 16 digits>.log. A segment is a header
// of 32 bytes and records:
//
//   offset 0  u32  length of the body, at most 32 MiB
//          4  u32  CRC-32C of bytes 8 to the end of the body
//          8  u8   type, not 0; three bytes 0
//         12  u64  bytes of this segment that were on stable storage when the record was written
//         20       body
//
// All numbers are little-endian. A bad record at or behind the last mark of
// stable storage is the torn end of a crash: it and what follows is cut off. A
// bad record before it is damage, and the log is refused: to go on without a
// record in the middle would lose sandboxes silently.
//
// Compaction rewrites all sealed segments but the newest as one segment with the
// base flag, under the name of the last of them; a base makes what is older void.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/result.h"
#include "sys/fd.h"

namespace dsec::edge {

inline constexpr std::uint32_t kWalFormat = 1;

class Wal {
 public:
  struct Options {
    std::string directory;
    std::uint64_t segment_bytes = 16 << 20;
  };
  using Visitor = std::function<Result<void>(std::uint8_t type, std::string_view body)>;
  // What a compaction keeps. All records are shown to note() first, in order,
  // then keep() is asked for each, in the same order.
  class Filter {
   public:
    virtual ~Filter() = default;
    virtual void note(std::uint8_t type, std::string_view body) = 0;
    virtual bool keep(std::uint8_t type, std::string_view body) = 0;
  };

  // Reads what is there, showing each record to `visit` in order; the first
  // error of `visit` ends it. kDataFault for damage, kUnsupported for a newer format.
  static Result<std::unique_ptr<Wal>> open(Options options, const Visitor& visit);
  ~Wal();
  Wal(const Wal&) = delete;
  Wal& operator=(const Wal&) = delete;

  // One thread (the event loop). The position is passed to commit(). After an
  // error the record is not in the log.
  Result<std::uint64_t> append(std::uint8_t type, std::string_view body);
  // `done` runs on the log's thread, once everything up to `position` is on
  // stable storage, or with the error that keeps it from getting there.
  void commit(std::uint64_t position, std::function<void(Result<void>)> done);

  // The same for all that was appended, at once. Blocks for disk; before the loop runs.
  Result<void> sync();

  // True when sealed segments have grown enough to be worth it.
  bool wants_compaction() const;
  // Blocks for disk; any thread but only one at a time, beside append().
  Result<void> compact(Filter& filter);

  std::uint64_t bytes() const { return written_.load(std::memory_order_relaxed); }

 private:
  explicit Wal(Options options) : options_(std::move(options)) {}
  Result<void> start_segment(std::uint64_t sequence);
  void run_commits();

  struct Waiter {
    std::uint64_t position;
    std::function<void(Result<void>)> done;
  };

  const Options options_;
  // The event loop's: the segment being written.
  std::uint64_t sequence_ = 0;
  std::uint64_t segment_start_ = 0;  // position of the segment's first byte
  std::uint64_t segment_size_ = 0;
  std::string scratch_;
  std::atomic<std::uint64_t> written_{0};   // position behind the last append
  std::atomic<std::uint64_t> synced_{0};    // everything below is on stable storage
  std::atomic<bool> broken_{false};         // stable storage refused; nothing more is promised
  mutable std::mutex mutex_;  // guards the rest; never held across a system call that waits for the disk
  std::condition_variable wake_;
  std::shared_ptr<sys::Fd> segment_;
  std::vector<Waiter> waiters_;
  std::vector<std::uint64_t> sealed_;  // sequences, oldest first
  std::uint64_t sealed_bytes_ = 0;     // written since the last compaction
  bool stopping_ = false;
  std::thread thread_;
};

// For tests and tools: the bytes of one record.
std::string encode_wal_record(std::uint8_t type, std::string_view body, std::uint64_t stable_bytes);

}  // namespace dsec::edge
