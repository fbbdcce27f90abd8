// Runs the node's package clients, bounded in time and output.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "edge/service_detect.h"
#include "sys/fd.h"

extern char** environ;

namespace dsec::edge {
namespace {

constexpr std::size_t kMaxOutput = 1 << 20;

// Until the end of the output or the deadline.
Result<std::string> read_until(int fd, Deadline deadline) {
  std::string out;
  char buffer[16 << 10];
  for (;;) {
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = poll(&waiting, 1, deadline.left_ms());
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return errno_error("poll", errno);
    if (ready == 0) return Error(ErrorCode::kDeadlineExceeded, "took too long");
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got < 0) return errno_error("read", errno);
    if (got == 0) return out;
    out.append(buffer, static_cast<std::size_t>(got));
    if (out.size() > kMaxOutput) return Error(ErrorCode::kTooLarge, "printed more than 1 MiB");
  }
}

}  // namespace

Result<std::string> NodeClientRunner::run(const std::vector<std::string>& argv) {
  std::string doing;
  for (const std::string& word : argv) doing += (doing.empty() ? "" : " ") + word;
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return errno_error(doing, errno);
  const sys::Fd output(ends[0]);
  sys::Fd input(ends[1]);
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, input.get(), STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);  // its own group: a client that hangs ends with its children
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t pid = -1;
  const int failed = posix_spawnp(&pid, words[0], &actions, &attributes, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  input.reset();
  if (failed == ENOENT) return Error(ErrorCode::kNotFound, argv[0] + " is not installed");
  if (failed != 0) return errno_error(doing, failed);

  Result<std::string> out = read_until(output.get(), Deadline::in(limit_));
  if (!out.ok()) kill(-pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!out.ok()) return std::move(out).within(doing);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return Error(ErrorCode::kUnavailable, doing + ": " + (WIFEXITED(status) ? "exit status " + std::to_string(WEXITSTATUS(status)) : std::string("killed")));
  return out;
}

}  // namespace dsec::edge
