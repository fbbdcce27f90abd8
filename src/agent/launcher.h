// Births of payload processes, on a thread of their own.
//
// clone3 with CLONE_VFORK blocks its caller until the child has executed its
// program. A payload that owns the half-born child's user can stop it (SIGSTOP)
// for as long as it likes; only this thread waits then, and after kBirthLimit
// the child is killed.
//
// The thread is a bare one: pthread_create would bring glibc's resolver into the
// program. It makes raw system calls only and never allocates, so that a fork of
// the main thread finds the heap whole.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>

#include "agent/event_loop.h"
#include "agent/payload_child.h"
#include "base/result.h"

namespace dsec::agent {

inline constexpr std::chrono::seconds kBirthLimit{2};

class Launcher {
 public:
  // ran: the program runs. Otherwise plan.stage() and error_number() say why not.
  using Done = std::function<void(PayloadPlan& plan, bool ran)>;

  explicit Launcher(EventLoop& loop) : loop_(loop) {}
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // One after the other, in order; `done` runs on the loop.
  Result<void> launch(std::unique_ptr<PayloadPlan> plan, Done done);

  // The process that is being born, 0 if none: its death may be seen before its
  // birth is reported.
  pid_t unborn_pid() const { return current_ ? current_->pid() : 0; }

 private:
  struct Request {
    std::unique_ptr<PayloadPlan> plan;
    Done done;
  };
  Result<void> start_thread();
  static int run(void* self);
  void start_next();
  void on_done();
  void on_overdue();

  EventLoop& loop_;
  std::deque<Request> waiting_;
  std::unique_ptr<PayloadPlan> current_;  // the thread's between to_thread_ and from_thread_
  Done current_done_;
  bool current_ran_ = false;  // likewise
  EventLoop::TimerId overdue_ = 0;
  std::unique_ptr<char[]> stack_;
  sys::Fd to_thread_;    // eventfds
  sys::Fd from_thread_;
};

}  // namespace dsec::agent
