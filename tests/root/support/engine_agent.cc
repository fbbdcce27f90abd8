// A stand-in for aether in tests of the engine: answers Hello, and runs one shell
// command a connection as a payload process, made as agent_descriptors.h says.
//
//   "!command\n" -> what it prints, then "\nstatus=N\n", then end of file
//   "@path arg\n" -> the same for one program, without a shell
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "agent/activation.h"
#include "protocol/agent_descriptors.h"
#include "protocol/agent_messages.h"
#include "protocol/frame.h"
#include "protocol/payload_privileges.h"

namespace {

using namespace dsec::protocol;

[[noreturn]] void stop(const char* what) {
  std::printf("payload: %s: %s\n", what, std::strerror(errno));
  std::fflush(stdout);
  ::_exit(125);
}

[[noreturn]] void run_payload(int connection, const std::string& line) {
  ::dup2(connection, 1);
  ::dup2(connection, 2);
  for (int fd : kV1TasksFds)
    if (::fcntl(fd, F_GETFD) >= 0 && ::write(fd, "0", 1) != 1) stop("join a v1 cgroup");
  if (::setns(kInnerUserNamespaceFd, CLONE_NEWUSER) < 0) stop("setns");
  for (int c = 0; c <= kLastCapabilityTried; ++c)
    if (!(payload_capability_mask() >> c & 1)) ::prctl(PR_CAPBSET_DROP, c, 0, 0, 0);
  if (::syscall(SYS_setgroups, 0, nullptr) < 0 || ::syscall(SYS_setresgid, 0, 0, 0) < 0 || ::syscall(SYS_setresuid, 0, 0, 0) < 0) stop("ids");
  if (const int adj = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); adj >= 0) (void)!::write(adj, "500", 3);
  ::setsid();
  (void)!::chdir("/root");
  static char path[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", home[] = "HOME=/root";
  char* env[] = {path, home, nullptr};
  std::string text = line.substr(1);
  if (line[0] == '!') {
    static char sh[] = "sh", c[] = "-c";
    char* argv[] = {sh, c, text.data(), nullptr};
    ::execve("/bin/sh", argv, env);
  } else {
    const std::size_t space = text.find(' ');
    std::string program = text.substr(0, space);
    std::string argument = space == std::string::npos ? "" : text.substr(space + 1);
    char* argv[] = {program.data(), space == std::string::npos ? nullptr : argument.data(), nullptr};
    ::execve(program.c_str(), argv, env);
  }
  stop("exec");
}

void run(int connection, std::string line) {
  clone_args args{};
  args.flags = CLONE_INTO_CGROUP;
  args.cgroup = kPayloadCgroupFd;
  args.exit_signal = SIGCHLD;
  const long pid = ::syscall(SYS_clone3, &args, sizeof args);
  if (pid == 0) run_payload(connection, line);
  int status = 0;
  std::string end;
  if (pid < 0) {
    end = "clone3: " + std::string(std::strerror(errno)) + "\nstatus=-1\n";
  } else {
    while (::waitpid(static_cast<pid_t>(pid), &status, 0) < 0 && errno == EINTR) {
    }
    end = "\nstatus=" + std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)) + "\n";
  }
  (void)!::send(connection, end.data(), end.size(), MSG_NOSIGNAL);
}

void serve(int connection) {
  FrameReader frames;
  char buffer[4096];
  for (;;) {
    const ssize_t n = ::recv(connection, buffer, sizeof buffer, 0);
    if (n <= 0) return;
    if (buffer[0] == '!' || buffer[0] == '@') return run(connection, std::string(buffer, static_cast<std::size_t>(n) - (buffer[n - 1] == '\n')));
    frames.feed({buffer, static_cast<std::size_t>(n)});
    while (auto frame = frames.next()) {
      if (frame->type != MessageType::kHello) continue;
      HelloReply reply;
      reply.version = kAgentProtocolMax;
      const std::string bytes = encode_frame(MessageType::kHelloReply, encode(reply));
      (void)!::send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
  }
}

}  // namespace

int main() {
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, nullptr);
  if (!dsec::agent::await_root(kAgentListenFd)) return 1;
  for (;;) {
    const int connection = ::accept4(kAgentListenFd, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    // One process a connection, so that a command that hangs holds nothing up.
    if (const pid_t pid = ::fork(); pid == 0) {
      serve(connection);
      ::_exit(0);
    }
    ::close(connection);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
  }
}
