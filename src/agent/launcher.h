// Births of payload processes.
//
// A payload that owns the half-born child's user can stop it (SIGSTOP) for as
// long as it likes; only later births wait then, and after kBirthLimit the child
// is killed.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>

#include "agent/event_loop.h"
#include "agent/payload_child.h"

namespace dsec::agent {

inline constexpr std::chrono::seconds kBirthLimit{2};

class Launcher {
 public:
  // ran: the program runs. Otherwise plan.stage() and error_number() say why not.
  using Done = std::function<void(PayloadPlan& plan, bool ran)>;

  explicit Launcher(EventLoop& loop) : loop_(loop) {}
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // One after the other, in order; `done` runs on the loop, never from within this call.
  void launch(std::unique_ptr<PayloadPlan> plan, Done done);

  // The process that is being born, 0 if none: its death may be seen before its
  // birth is reported.
  pid_t unborn_pid() const { return current_ ? current_->pid() : 0; }

 private:
  struct Request {
    std::unique_ptr<PayloadPlan> plan;
    Done done;
  };
  void start_next();
  void report(bool ran);
  void on_overdue();

  EventLoop& loop_;
  std::deque<Request> waiting_;
  std::unique_ptr<PayloadPlan> current_;  // in use by its child
  Done current_done_;
  EventLoop::TimerId overdue_ = 0;
};

}  // namespace dsec::agent
