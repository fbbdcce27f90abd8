#include "sys/worker_pool.h"

#include <pthread.h>

namespace dsec::sys {

WorkerPool::WorkerPool(Options options) : options_(std::move(options)) {
  DSEC_CHECK(options_.threads > 0);
  for (std::size_t i = 0; i < options_.threads; i++) {
    std::thread& thread = threads_.emplace_back([this] { run(); });
    if (!options_.name.empty()) pthread_setname_np(thread.native_handle(), options_.name.substr(0, 15).c_str());
  }
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Result<void> WorkerPool::submit(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return Error(ErrorCode::kUnavailable, "the worker pool is stopping");
    if (queue_.size() >= options_.queue_limit) return Error(ErrorCode::kExhausted, "the queue of " + options_.name + " is full");
    queue_.push_back(std::move(work));
  }
  wake_.notify_one();
  return {};
}

void WorkerPool::run() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace dsec::sys
