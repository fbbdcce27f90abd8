#include "sys/process.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace dsec::sys {

namespace {

constexpr std::size_t kGuardBytes = 4096;

// <linux/pidfd.h> of 6.15; older headers lack it.
struct PidfdInfo {
  std::uint64_t mask;
  std::uint64_t cgroup_id;
  std::uint32_t ids[11];
  std::int32_t exit_code;
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr std::uint64_t kPidfdInfoExit = 1 << 3;
constexpr unsigned long kPidfdGetInfo = _IOWR(0xFF, 11, PidfdInfo);

// rdi: clone_args, rsi: its size, rdx: fn, rcx: argument. The system call keeps
// r8 and r9, and the child finds them on its new stack's side.
[[gnu::naked]] long clone3_on_stack(clone_args*, std::size_t, int (*)(void*), void*) {
  asm("mov %rdx, %r8\n\t"
      "mov %rcx, %r9\n\t"
      "mov $435, %eax\n\t"
      "syscall\n\t"
      "test %rax, %rax\n\t"
      "jnz 1f\n\t"
      "xor %ebp, %ebp\n\t"
      "mov %r9, %rdi\n\t"
      "call *%r8\n\t"
      "mov %eax, %edi\n\t"
      "mov $231, %eax\n\t"
      "syscall\n"
      "1:\n\t"
      "ret");
}

}  // namespace

ChildStack::ChildStack()
    : base_(::mmap(nullptr, kBytes + kGuardBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1,
                   0)) {
  DSEC_CHECK(base_ != MAP_FAILED);
  DSEC_CHECK(::mprotect(base_, kGuardBytes, PROT_NONE) == 0);
}

ChildStack::~ChildStack() { ::munmap(base_, kBytes + kGuardBytes); }

long clone_call(clone_args* args, const ChildStack& stack, int (*fn)(void*), void* argument) {
  args->stack = reinterpret_cast<std::uint64_t>(stack.base()) + kGuardBytes;
  args->stack_size = ChildStack::kBytes;
  const long result = clone3_on_stack(args, sizeof *args, fn, argument);
  if (result < 0) {
    errno = static_cast<int>(-result);
    return -1;
  }
  return result;
}

Result<Fd> open_pidfd(pid_t pid) {
  Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) {
    if (errno == ESRCH) return Error(ErrorCode::kNotFound, "pidfd_open: no such process", ESRCH);
    return errno_error("pidfd_open", errno);
  }
  return fd;
}

Result<std::uint64_t> process_identity(int pidfd) {
  struct stat st {};
  if (::fstat(pidfd, &st) < 0) return errno_error("stat a pidfd", errno);
  return static_cast<std::uint64_t>(st.st_ino);
}

Result<void> signal_process(int pidfd, int signal) {
  if (::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) < 0 && errno != ESRCH)
    return errno_error("pidfd_send_signal", errno);
  return {};
}

bool process_ended(int pidfd) {
  pollfd p{pidfd, POLLIN, 0};
  return ::poll(&p, 1, 0) == 1;
}

Result<void> wait_process(int pidfd, Deadline deadline) {
  for (;;) {
    pollfd p{pidfd, POLLIN, 0};
    const int n = ::poll(&p, 1, deadline.left_ms());
    if (n == 1) return {};
    if (n == 0) return Error(ErrorCode::kDeadlineExceeded, "the process has not ended");
    if (errno != EINTR) return errno_error("poll a pidfd", errno);
  }
}

void reset_signals() {
  // The kernel's form of a default action is all zeros. libc's sigaction refuses 32 and 33.
  constexpr int kLastSignal = 64;
  const std::uint64_t action[4] = {};
  for (int number = 1; number <= kLastSignal; ++number) ::syscall(SYS_rt_sigaction, number, action, nullptr, sizeof(std::uint64_t));
}

std::optional<int> exit_status(int pidfd) {
  PidfdInfo info{};
  info.mask = kPidfdInfoExit;
  if (::ioctl(pidfd, kPidfdGetInfo, &info) < 0 || !(info.mask & kPidfdInfoExit)) return std::nullopt;
  return info.exit_code;
}

}  // namespace dsec::sys
