#include "agent/launcher.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "agent/raw_syscall.h"

namespace dsec::agent {
namespace {
constexpr std::size_t kThreadStack = 16 << 10;
}  // namespace

Result<void> Launcher::start_thread() {
  to_thread_ = sys::Fd(::eventfd(0, EFD_CLOEXEC));
  from_thread_ = sys::Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!to_thread_ || !from_thread_) return errno_error("eventfd", errno);
  if (!loop_.watch(from_thread_.get(), EPOLLIN, [this](std::uint32_t) { on_done(); })) return errno_error("epoll_ctl", errno);

  stack_ = std::make_unique_for_overwrite<char[]>(kThreadStack);
  clone_args args{};
  args.flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
  args.stack = reinterpret_cast<std::uint64_t>(stack_.get());
  args.stack_size = kThreadStack;
  const long thread = clone_with_stack(&args, &Launcher::run, this);
  if (thread > 0) return {};
  loop_.forget(from_thread_.get());
  stack_.reset();
  return errno_error("start the launcher's thread", static_cast<int>(-thread));
}

int Launcher::run(void* self) {
  auto& launcher = *static_cast<Launcher*>(self);
  for (;;) {
    std::uint64_t count = 0;
    if (raw(SYS_read, launcher.to_thread_.get(), &count, sizeof count) != sizeof count) continue;
    launcher.current_ran_ = launcher.current_->launch();
    const std::uint64_t one = 1;
    raw(SYS_write, launcher.from_thread_.get(), &one, sizeof one);
  }
  return 0;
}

Result<void> Launcher::launch(std::unique_ptr<PayloadPlan> plan, Done done) {
  if (!stack_) DSEC_TRY(start_thread());
  waiting_.push_back({std::move(plan), std::move(done)});
  start_next();
  return {};
}

void Launcher::start_next() {
  if (current_ || waiting_.empty()) return;
  current_ = std::move(waiting_.front().plan);
  current_done_ = std::move(waiting_.front().done);
  waiting_.pop_front();
  overdue_ = loop_.after(kBirthLimit, [this] { on_overdue(); });
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto put = ::write(to_thread_.get(), &one, sizeof one);
}

void Launcher::on_overdue() {
  overdue_ = 0;
  // The process is a child of ours that nobody has reaped: the number is its own.
  if (const pid_t pid = unborn_pid(); pid > 0) ::kill(pid, SIGKILL);
  overdue_ = loop_.after(kBirthLimit, [this] { on_overdue(); });
}

void Launcher::on_done() {
  std::uint64_t count = 0;
  if (::read(from_thread_.get(), &count, sizeof count) != sizeof count) return;
  loop_.cancel(std::exchange(overdue_, 0));
  const std::unique_ptr<PayloadPlan> plan = std::move(current_);
  const Done done = std::move(current_done_);
  current_done_ = nullptr;
  done(*plan, current_ran_);
  start_next();
}

}  // namespace dsec::agent
