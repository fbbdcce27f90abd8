#include "image/confined_worker.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>

#include "sys/fd.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

constexpr unsigned kMappedIds = 65536;
constexpr std::uint64_t kAnswersLimit = 64ULL << 20;
constexpr std::size_t kLogTail = 2000;
constexpr int kCancelCheckMs = 100;

struct Pipe {
  sys::Fd read;
  sys::Fd write;
};

// Of the numbers that the child's descriptors are put on.
Result<sys::Fd> out_of_the_way(int fd, int above) {
  sys::Fd moved(::fcntl(fd, F_DUPFD_CLOEXEC, above));
  if (!moved) return errno_error("move a descriptor", errno);
  return moved;
}

Result<Pipe> make_pipe(int above) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("make a pipe", errno);
  Pipe low{sys::Fd(ends[0]), sys::Fd(ends[1])};
  Pipe high;
  DSEC_ASSIGN(high.read, out_of_the_way(low.read.get(), above));
  DSEC_ASSIGN(high.write, out_of_the_way(low.write.get(), above));
  return high;
}

// The worker process; killed and reaped with its pid namespace on destruction.
class Worker {
 public:
  Worker(pid_t pid, sys::Fd pidfd) : pid_(pid), pidfd_(std::move(pidfd)) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() { end(); }

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }
  // The kernel ends the whole pid namespace before process 1 can be reaped.
  siginfo_t end() {
    if (reaped_) return status_;
    ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
    return wait();
  }
  siginfo_t wait() {
    while (!reaped_) {
      if (::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(pidfd_.get()), &status_, WEXITED) == 0 || errno != EINTR) reaped_ = true;
    }
    return status_;
  }

 private:
  const pid_t pid_;
  const sys::Fd pidfd_;
  siginfo_t status_{};
  bool reaped_ = false;
};

// What the child needs, all made before it starts: it is a copy of one thread
// of this process and may only make plain system calls.
struct ChildPlan {
  int gate;
  int gate_opener;  // closed in the child, or the end of this process would not open the gate
  int input;
  int answer;
  int log;
  int helper;
  const std::vector<sys::Fd>* passed;
  const char* directory;
  char* const* argv;
  char* const* environment;
};

[[noreturn]] void be_child(const ChildPlan& plan) {
  ::close(plan.gate_opener);
  struct sigaction by_default{};
  by_default.sa_handler = SIG_DFL;
  for (int signal = 1; signal < 65; signal++) ::sigaction(signal, &by_default, nullptr);
  sigset_t none;
  ::sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
  // The path belongs to host root: it can only be walked before this process
  // takes its own ids.
  if (::chdir(plan.directory) != 0) ::_exit(121);
  char go = 0;
  if (::read(plan.gate, &go, 1) != 1) ::_exit(122);
  // Not through glibc, which would call the threads of the parent.
  if (::syscall(SYS_setgroups, 0, nullptr) != 0 || ::syscall(SYS_setresgid, 0, 0, 0) != 0 || ::syscall(SYS_setresuid, 0, 0, 0) != 0) ::_exit(123);
  ::setsid();
  if (::dup2(plan.input, 0) < 0 || ::dup2(plan.log, 1) < 0 || ::dup2(plan.log, 2) < 0 || ::dup2(plan.answer, 3) < 0) ::_exit(124);
  int next = kFirstPassed;
  for (const sys::Fd& one : *plan.passed) {
    if (::dup2(one.get(), next++) < 0) ::_exit(124);
  }
  ::syscall(SYS_close_range, next, ~0U, CLOSE_RANGE_CLOEXEC);
  ::syscall(SYS_execveat, plan.helper, "", plan.argv, plan.environment, AT_EMPTY_PATH);
  ::_exit(125);
}

Result<std::pair<pid_t, sys::Fd>> start(const ChildPlan& plan, const ConfinedRun& run) {
  int pidfd = -1;
  clone_args args{};
  args.flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_PIDFD | (run.node_network ? 0ULL : CLONE_NEWNET) |
               (run.users == WorkerUsers::kOwn ? CLONE_NEWUSER : 0ULL);
  args.pidfd = reinterpret_cast<std::uint64_t>(&pidfd);
  args.exit_signal = SIGCHLD;
  const long pid = ::syscall(SYS_clone3, &args, sizeof args);
  if (pid < 0) return errno_error("start the import worker", errno);
  if (pid == 0) be_child(plan);
  return std::pair(static_cast<pid_t>(pid), sys::Fd(pidfd));
}

Result<void> map_ids(pid_t pid, unsigned first_id) {
  const std::string map = "0 " + std::to_string(first_id) + " " + std::to_string(kMappedIds);
  const std::string process = "/proc/" + std::to_string(pid);
  DSEC_TRY(sys::write_at(AT_FDCWD, process + "/gid_map", map));
  return sys::write_at(AT_FDCWD, process + "/uid_map", map);
}

// Keeps the last part of what the worker and its programs wrote.
class LogTail {
 public:
  void add(std::string_view bytes) {
    text_ += bytes;
    if (text_.size() > 4 * kLogTail) text_.erase(0, text_.size() - kLogTail);
  }
  std::string text() const {
    std::string tail = text_.size() > kLogTail ? text_.substr(text_.size() - kLogTail) : text_;
    while (!tail.empty() && (tail.back() == '\n' || tail.back() == ' ')) tail.pop_back();
    return tame(tail, kLogTail);
  }

 private:
  std::string text_;
};

// Cuts the answers into lines and keeps the final one.
class Answers {
 public:
  Answers(const std::function<void(const WorkerProgress&)>& on_progress) : on_progress_(on_progress) {}

  Result<void> add(std::string_view bytes) {
    received_ += bytes.size();
    if (received_ > kAnswersLimit) return Error(ErrorCode::kInternal, "the import worker talks too much");
    pending_ += bytes;
    std::size_t begin = 0;
    for (std::size_t end = pending_.find('\n'); end != std::string::npos; end = pending_.find('\n', begin)) {
      DSEC_ASSIGN(WorkerLine line, decode_line(std::string_view(pending_).substr(begin, end - begin)));
      begin = end + 1;
      if (line.progress && on_progress_) on_progress_(*line.progress);
      if (line.result || line.error) final_ = std::move(line);
    }
    pending_.erase(0, begin);
    if (pending_.size() > kMessageLimit) return Error(ErrorCode::kInternal, "the import worker's answer is too long");
    return {};
  }
  std::optional<WorkerLine>& final() { return final_; }

 private:
  const std::function<void(const WorkerProgress&)>& on_progress_;
  std::string pending_;
  std::optional<WorkerLine> final_;
  std::uint64_t received_ = 0;
};

// False at end of file.
template <typename Take>
Result<bool> drain(const sys::Fd& pipe, Take take) {
  char buffer[65536];
  const ssize_t n = ::read(pipe.get(), buffer, sizeof buffer);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return true;
  if (n < 0) return errno_error("listen to the import worker", errno);
  if (n == 0) return false;
  DSEC_TRY(take(std::string_view(buffer, static_cast<std::size_t>(n))));
  return true;
}

Result<void> listen(const ConfinedRun& run, sys::Fd& answer, sys::Fd& log, Answers& answers, LogTail& tail) {
  while (answer.valid() || log.valid()) {
    if (run.cancelled != nullptr && run.cancelled->load()) return Error(ErrorCode::kCancelled, "the import was cancelled");
    if (run.deadline.passed()) return Error(ErrorCode::kDeadlineExceeded, "the import took too long");
    std::array<pollfd, 2> waits = {pollfd{.fd = answer.get(), .events = POLLIN, .revents = 0}, pollfd{.fd = log.get(), .events = POLLIN, .revents = 0}};
    if (::poll(waits.data(), waits.size(), std::min(run.deadline.left_ms(), kCancelCheckMs)) < 0 && errno != EINTR) return errno_error("wait for the import worker", errno);
    if (run.on_tick) run.on_tick();
    if (answer.valid() && waits[0].revents != 0) {
      DSEC_ASSIGN(const bool more, drain(answer, [&](std::string_view bytes) { return answers.add(bytes); }));
      if (!more) answer.reset();
    }
    if (log.valid() && waits[1].revents != 0) {
      DSEC_ASSIGN(const bool more, drain(log, [&](std::string_view bytes) -> Result<void> {
                    tail.add(bytes);
                    return {};
                  }));
      if (!more) log.reset();
    }
  }
  return {};
}

Error death(const siginfo_t& status, const LogTail& tail) {
  std::string message = "the import worker ";
  if (status.si_code == CLD_EXITED) {
    message += "ended with code " + std::to_string(status.si_status);
  } else if (status.si_status == SIGXFSZ) {
    return Error(ErrorCode::kTooLarge, "the archive unpacks to too large a file");
  } else {
    message += "was killed by signal " + std::to_string(status.si_status);
  }
  if (const std::string text = tail.text(); !text.empty()) message += ": " + text;
  return Error(ErrorCode::kInternal, message);
}

}  // namespace

Result<ImportResult> run_confined(const ConfinedRun& run) {
  const int above = kFirstPassed + static_cast<int>(run.passed.size());
  DSEC_ASSIGN(const sys::Fd helper_low, sys::open_at(AT_FDCWD, run.helper, O_PATH));
  DSEC_ASSIGN(const sys::Fd helper, out_of_the_way(helper_low.get(), above));
  DSEC_ASSIGN(const sys::Fd nothing, sys::open_at(AT_FDCWD, "/dev/null", O_RDONLY));
  DSEC_ASSIGN(const sys::Fd input, out_of_the_way(run.input >= 0 ? run.input : nothing.get(), above));
  std::vector<sys::Fd> passed(run.passed.size());
  for (std::size_t i = 0; i < passed.size(); i++) {
    DSEC_ASSIGN(passed[i], out_of_the_way(run.passed[i], above));
  }
  DSEC_ASSIGN(Pipe gate, make_pipe(above));
  DSEC_ASSIGN(Pipe answer, make_pipe(above));
  DSEC_ASSIGN(Pipe log, make_pipe(above));

  const std::string request = encode(run.request);
  std::array<char*, 4> argv = {const_cast<char*>("dsec"), const_cast<char*>("import-worker"), const_cast<char*>(request.c_str()), nullptr};
  std::array<char*, 2> environment = {const_cast<char*>("PATH=/usr/bin:/bin"), nullptr};
  DSEC_ASSIGN(auto started, start({gate.read.get(), gate.write.get(), input.get(), answer.write.get(), log.write.get(), helper.get(), &passed, run.job_directory.c_str(), argv.data(), environment.data()},
                                  run));
  Worker worker(started.first, std::move(started.second));
  answer.write.reset();
  log.write.reset();
  gate.read.reset();
  if (run.users == WorkerUsers::kOwn) DSEC_TRY(map_ids(worker.pid(), run.first_id).within("give the import worker its ids"));
  if (run.before_start) DSEC_TRY(run.before_start(worker.pid()));
  DSEC_TRY(sys::write_all(gate.write.get(), "x").within("start the import worker"));

  Answers answers(run.on_progress);
  LogTail tail;
  DSEC_TRY(listen(run, answer.read, log.read, answers, tail));
  const siginfo_t status = worker.end();
  if (!answers.final()) return death(status, tail);
  if (std::optional<Error>& error = answers.final()->error; error) {
    // What its programs printed is where the reason stands then.
    if (const std::string text = tail.text(); !text.empty() && error->code() == ErrorCode::kInternal) return Error(error->code(), error->message() + ": " + text);
    return std::move(*error);
  }
  return std::move(*answers.final()->result);
}

}  // namespace dsec::image
