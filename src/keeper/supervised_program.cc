#include "keeper/supervised_program.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "base/errno_text.h"
#include "base/log.h"
#include "sys/process.h"

namespace dsec::keeper {

namespace {

// One that ends sooner than this does not work; the next waits longer each time.
constexpr auto kQuickEnd = std::chrono::seconds(2);
constexpr auto kLongestWait = std::chrono::milliseconds(3200);
constexpr auto kFirstWait = std::chrono::milliseconds(50);

}  // namespace

void SupervisedProgram::start_if_due() {
  if (pid_ != 0 || std::chrono::steady_clock::now() < next_start_) return;
  std::vector<std::string> words = command_;
  words.push_back(std::to_string(fd_));
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    sigset_t none;
    ::sigemptyset(&none);
    ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
    ::fcntl(fd_, F_SETFD, 0);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  started_ = std::chrono::steady_clock::now();
  if (pid < 0) {
    log_error("a program could not be started", {{"program", name_}, {"error", errno_text(errno)}});
    next_start_ = started_ + kLongestWait;
    return;
  }
  ++starts_;
  pid_ = pid;
  // Even if it is gone already: an unreaped or just reaped child's pid is not reused meanwhile.
  auto pidfd = sys::open_pidfd(pid);
  if (pidfd.ok()) pidfd_ = std::move(*pidfd);
  else ended();
}

void SupervisedProgram::ended() {
  const auto now = std::chrono::steady_clock::now();
  quick_ends_ = now - started_ < kQuickEnd ? std::min(quick_ends_ + 1, 7u) : 0;
  const auto wait = quick_ends_ <= 1 ? std::chrono::milliseconds(0) : std::min(kFirstWait * (1 << (quick_ends_ - 1)), kLongestWait);
  next_start_ = now + wait;
  log_warning("a program ended", {{"program", name_}, {"pid", std::to_string(pid_)}, {"next_ms", std::to_string(wait.count())}});
  pid_ = 0;
  pidfd_.reset();
}

int SupervisedProgram::due_ms() const {
  if (pid_ != 0) return -1;
  return Deadline::at(next_start_).left_ms();
}

void SupervisedProgram::stop(Deadline deadline) {
  if (pid_ == 0) return;
  (void)sys::signal_process(pidfd_.get(), SIGTERM);
  if (!sys::wait_process(pidfd_.get(), deadline).ok()) {
    (void)sys::signal_process(pidfd_.get(), SIGKILL);
    (void)sys::wait_process(pidfd_.get(), Deadline::in(std::chrono::seconds(5)));
  }
  pid_ = 0;
  pidfd_.reset();
}

}  // namespace dsec::keeper
