// Processes, by descriptor.
#pragma once

#include <linux/sched.h>
#include <sched.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "base/result.h"
#include "sys/fd.h"

namespace dsec::sys {

// A mapped stack for a child that shares memory, with a guard page below.
class ChildStack {
 public:
  static constexpr std::size_t kBytes = 64 << 10;
  ChildStack();
  ~ChildStack();
  ChildStack(const ChildStack&) = delete;
  ChildStack& operator=(const ChildStack&) = delete;
  void* base() const { return base_; }

 private:
  void* base_;
};

// clone3 whose child runs fn(argument) on `stack` and exits with its result.
// None of libc's fork handling runs, so the cost does not depend on the size of
// this process. Flags must hold CLONE_VM. The child shares this thread's TLS:
// with CLONE_VFORK it may use errno, without it only system calls that succeed
// or are not looked at through errno. It must not allocate, lock or return by
// an exception. Returns the pid, or -1 and errno.
long clone_call(clone_args* args, const ChildStack& stack, int (*fn)(void*), void* argument);

Result<Fd> open_pidfd(pid_t pid);
// Unique among all processes since boot (the pidfs inode): what tells a process
// from a later one of the same number.
Result<std::uint64_t> process_identity(int pidfd);
// ok when the process is gone already.
Result<void> signal_process(int pidfd, int signal);
// True once the process and all of its threads are gone (a zombie counts as gone).
bool process_ended(int pidfd);
Result<void> wait_process(int pidfd, Deadline deadline);
// Every signal at its default, those too that libc keeps to itself and leaves
// ignored in what posix_spawn starts. For a program's start.
void reset_signals();
// The wait status of a reaped process, where the kernel still tells.
std::optional<int> exit_status(int pidfd);

}  // namespace dsec::sys
