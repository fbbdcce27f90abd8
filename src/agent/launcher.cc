#include "agent/launcher.h"

#include <signal.h>
#include <sys/epoll.h>

namespace dsec::agent {

void Launcher::launch(std::unique_ptr<PayloadPlan> plan, Done done) {
  waiting_.push_back({std::move(plan), std::move(done)});
  start_next();
}

void Launcher::start_next() {
  if (current_ || waiting_.empty()) return;
  current_ = std::move(waiting_.front().plan);
  current_done_ = std::move(waiting_.front().done);
  waiting_.pop_front();
  const bool started = current_->prepare() &&
                       loop_.watch(current_->birth_fd(), EPOLLIN, [this](std::uint32_t) { report(current_->ran()); }) && current_->start();
  if (started) {
    overdue_ = loop_.after(kBirthLimit, [this] { on_overdue(); });
  } else {
    loop_.forget(current_->birth_fd());
    loop_.later([this] { report(current_->ran()); });
  }
}

void Launcher::on_overdue() {
  // The process is a child of ours that nobody has reaped: the number is its own.
  if (const pid_t pid = unborn_pid(); pid > 0) ::kill(pid, SIGKILL);
  overdue_ = loop_.after(kBirthLimit, [this] { on_overdue(); });
}

void Launcher::report(bool ran) {
  loop_.forget(current_->birth_fd());
  loop_.cancel(std::exchange(overdue_, 0));
  const std::unique_ptr<PayloadPlan> plan = std::move(current_);
  const Done done = std::move(current_done_);
  current_done_ = nullptr;
  done(*plan, ran);
  start_next();
}

}  // namespace dsec::agent
