// Reads of files on a 3FS mount past the kernel: one ring of requests, and a
// piece of shared memory for each that is under way.
//
// The daemon of 3FS may be gone or slow. A caller goes on at its deadline; the
// piece of memory stays taken until the answer comes, since the daemon may write
// to it until then.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "origin/buffer.h"
#include "origin/usrbio_library.h"

namespace dsec::origin {

// Safe on any thread.
class UsrbioRing {
 public:
  struct Options {
    std::size_t slots = 16;
    std::size_t slot_bytes = 4 << 20;  // of shared memory, for one request
  };
  // `path` is a file or folder of the mount. Blocks for the mount.
  static Result<std::unique_ptr<UsrbioRing>> create(std::shared_ptr<const UsrbioLibrary> library, const std::string& path, Options options);
  ~UsrbioRing();
  UsrbioRing(const UsrbioRing&) = delete;
  UsrbioRing& operator=(const UsrbioRing&) = delete;

  // Makes a file readable by the ring, until it is forgotten, before it is closed.
  Result<void> add(int fd) const;
  void forget(int fd) const { library_->dereg_fd(fd); }
  // All of the range; kDataFault when the file ends before. kExhausted when every
  // piece of memory is taken until the deadline.
  Result<Buffer> read(int fd, std::uint64_t offset, std::size_t length, Deadline deadline);

 private:
  enum class State : std::uint8_t { kFree, kUnderWay, kGivenUp, kDone };
  struct Slot {
    State state = State::kFree;
    std::int64_t result = 0;
  };

  UsrbioRing(std::shared_ptr<const UsrbioLibrary> library, Options options) : library_(std::move(library)), options_(options), slots_(options.slots) {}
  Result<void> set_up(const std::string& path);
  // How much of the range came, at least a byte of it.
  Result<std::size_t> read_part(int fd, std::uint64_t offset, char* out, std::size_t length, Deadline deadline);
  Result<std::size_t> take_slot(Deadline deadline);
  void free_slot(std::size_t slot);
  Result<void> ask(std::size_t slot, int fd, std::uint64_t offset, std::size_t length, Deadline deadline);
  Result<std::int64_t> answer(std::size_t slot, Deadline deadline);
  std::uint8_t* memory_of(std::size_t slot) const { return memory_.base + slot * options_.slot_bytes; }
  void take_answers();
  void settle(const UsrbioDone& done);

  const std::shared_ptr<const UsrbioLibrary> library_;
  const Options options_;
  UsrbioMemory memory_;
  UsrbioQueue queue_;
  bool has_memory_ = false;
  bool has_queue_ = false;
  std::mutex ask_mutex_;  // requests are put in by one thread at a time
  std::mutex mutex_;      // guards slots_; held over no call of the library
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::atomic<bool> stopping_{false};
  std::thread answers_;  // takes all of them out: that too is one thread's
};

}  // namespace dsec::origin
