// A bounded pool of threads for system calls that block.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"

namespace dsec::sys {

// submit() never blocks: a full queue answers kExhausted. The destructor runs
// what is queued and joins.
class WorkerPool {
 public:
  struct Options {
    std::string name;  // thread name, at most 15 bytes
    std::size_t threads = 2;
    std::size_t queue_limit = 4096;
  };
  explicit WorkerPool(Options options);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  Result<void> submit(std::function<void()> work);

 private:
  void run();

  const Options options_;
  std::mutex mutex_;  // guards queue_ and stopping_; never held while work runs
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dsec::sys
