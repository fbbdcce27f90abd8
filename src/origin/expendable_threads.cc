#include "origin/expendable_threads.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

namespace dsec::origin {

namespace {

struct Job {
  std::function<void()> work;
  bool awaited = true;  // false from the start for a posted one
  bool begun = false;
  bool done = false;
};

}  // namespace

// Owned by the threads too, so that one which is given up finds it when it
// comes back, however late.
struct ExpendableThreads::State : std::enable_shared_from_this<State> {
  explicit State(Options given) : options(std::move(given)) {}

  const Options options;
  std::mutex mutex;  // guards all below and every job; never held while work runs
  std::condition_variable wake;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Job>> queue;
  std::size_t live = 0;
  std::size_t idle = 0;
  std::size_t unawaited = 0;  // threads in work that nobody waits for
  std::size_t given_up = 0;   // of these, the ones whose caller has left
  bool stopping = false;

  // Under the lock.
  Result<void> enqueue(std::shared_ptr<Job> job);
  void serve();
  void work_on(Job& job, std::unique_lock<std::mutex>& lock);
};

Result<void> ExpendableThreads::State::enqueue(std::shared_ptr<Job> job) {
  queue.push_back(std::move(job));
  if (idle < queue.size() && live < options.threads) {
    try {
      std::thread([state = shared_from_this()] { state->serve(); }).detach();
      ++live;
    } catch (const std::system_error& failure) {
      if (live == unawaited) {  // nobody is left who could take it
        queue.pop_back();
        return Error(ErrorCode::kExhausted, std::string("start a thread: ") + failure.what());
      }
    }
  }
  wake.notify_one();
  return {};
}

void ExpendableThreads::State::serve() {
  ::pthread_setname_np(::pthread_self(), options.name.c_str());
  std::unique_lock lock(mutex);
  while (true) {
    ++idle;
    wake.wait(lock, [this] { return stopping || !queue.empty(); });
    --idle;
    if (queue.empty()) break;
    const std::shared_ptr<Job> job = std::move(queue.front());
    queue.pop_front();
    work_on(*job, lock);
  }
  --live;
  changed.notify_all();
}

void ExpendableThreads::State::work_on(Job& job, std::unique_lock<std::mutex>& lock) {
  job.begun = true;
  const bool posted = !job.awaited;
  if (posted) ++unawaited;
  lock.unlock();
  job.work();
  job.work = nullptr;  // here: what it owned may block too when it goes
  lock.lock();
  job.done = true;
  if (posted || !job.awaited) --unawaited;
  if (!posted && !job.awaited) --given_up;
  changed.notify_all();
}

ExpendableThreads::ExpendableThreads(Options options) : state_(std::make_shared<State>(std::move(options))) {}

ExpendableThreads::~ExpendableThreads() {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->wake.notify_all();
  state_->changed.wait(lock, [this] { return state_->live == state_->unawaited; });
}

Result<void> ExpendableThreads::run(std::function<void()> work, Deadline deadline) {
  if (deadline.passed()) return Error(ErrorCode::kDeadlineExceeded, "no time left");
  const auto job = std::make_shared<Job>(Job{.work = std::move(work)});
  std::unique_lock lock(state_->mutex);
  if (state_->given_up >= state_->options.given_up)
    return Error(ErrorCode::kExhausted, std::to_string(state_->given_up) + " earlier calls have not come back yet");
  DSEC_TRY(state_->enqueue(job));
  if (state_->changed.wait_until(lock, deadline.when(), [&job] { return job->done; })) return {};
  if (!job->begun) {
    std::erase(state_->queue, job);
    return Error(ErrorCode::kExhausted, "every thread waits for an answer");
  }
  job->awaited = false;
  ++state_->unawaited;
  ++state_->given_up;
  state_->changed.notify_all();
  return Error(ErrorCode::kDeadlineExceeded, "no answer in time");
}

void ExpendableThreads::post(std::function<void()> work) {
  const auto job = std::make_shared<Job>(Job{.work = std::move(work), .awaited = false});
  const std::lock_guard lock(state_->mutex);
  // Without a thread the work is dropped, and what it owns with it.
  const Result<void> queued = state_->enqueue(job);
  (void)queued;
}

std::size_t ExpendableThreads::given_up() const {
  const std::lock_guard lock(state_->mutex);
  return state_->given_up;
}

}  // namespace dsec::origin
