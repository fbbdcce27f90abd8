// Threads for system calls that may never come back.
//
// A file system whose servers are gone holds its callers in the kernel, where no
// signal reaches them. So each call runs on a thread that can be given up: the
// caller goes on at its deadline, the thread and all that its work owns stay
// until the kernel lets go, and only so many may be in that state.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/result.h"

namespace dsec::origin {

class ExpendableThreads {
 public:
  struct Options {
    std::string name = "origin";  // of the threads, at most 15 bytes
    std::size_t threads = 64;     // given up ones among them
    std::size_t given_up = 32;    // then calls are refused
  };
  explicit ExpendableThreads(Options options);
  // Waits for the threads that somebody waits for, and for no others.
  ~ExpendableThreads();
  ExpendableThreads(const ExpendableThreads&) = delete;
  ExpendableThreads& operator=(const ExpendableThreads&) = delete;

  // The result of `work`, which owns all that it touches: after
  // kDeadlineExceeded it still runs. kExhausted when it never began.
  template <typename T>
  Result<T> call(std::function<Result<T>()> work, Deadline deadline) {
    auto result = std::make_shared<std::optional<Result<T>>>();
    DSEC_TRY(run([result, work = std::move(work)] { result->emplace(work()); }, deadline));
    return std::move(**result);
  }
  // Runs `work` some time; nobody waits for it.
  void post(std::function<void()> work);
  // How many are given up now.
  std::size_t given_up() const;

 private:
  struct State;
  Result<void> run(std::function<void()> work, Deadline deadline);

  const std::shared_ptr<State> state_;
};

}  // namespace dsec::origin
