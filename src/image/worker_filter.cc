#include "image/worker_filter.h"

#include <seccomp.h>

#include <array>
#include <cerrno>
#include <memory>
#include <span>

namespace dsec::image {

namespace {

struct Release {
  void operator()(void* filter) const { seccomp_release(filter); }
};
using Filter = std::unique_ptr<void, Release>;

constexpr std::array kParserCalls = {
    "read", "write", "pread64", "pwrite64", "readv", "writev", "preadv", "pwritev", "open", "openat", "openat2", "close", "close_range", "creat",
    "stat", "fstat", "lstat", "newfstatat", "statx", "statfs", "fstatfs", "lseek", "access", "faccessat", "faccessat2", "readlink", "readlinkat",
    "mmap", "munmap", "mprotect", "mremap", "brk", "madvise", "fadvise64", "fallocate", "truncate", "ftruncate", "fsync", "fdatasync",
    "sync_file_range", "copy_file_range", "sendfile", "mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "rename", "renameat", "renameat2", "link",
    "linkat", "symlink", "symlinkat", "mknod", "mknodat", "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "fchownat", "lchown",
    "utime", "utimes", "futimesat", "utimensat", "setxattr", "lsetxattr", "fsetxattr", "getxattr", "lgetxattr", "fgetxattr", "listxattr",
    "llistxattr", "flistxattr", "removexattr", "lremovexattr", "fremovexattr", "getdents64", "getcwd", "chdir", "fchdir", "umask", "fcntl", "flock", "dup", "dup2", "dup3", "pipe", "pipe2",
    "poll", "ppoll", "select", "pselect6", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "getpid", "getppid", "gettid",
    "getuid", "geteuid", "getgid", "getegid", "getresuid", "getresgid", "getgroups", "getpgrp", "getpgid", "getsid", "getrandom", "uname",
    "sysinfo", "getrlimit", "prlimit64", "getrusage", "times", "time", "gettimeofday", "clock_gettime", "clock_getres", "clock_nanosleep",
    "nanosleep", "sched_getaffinity", "sched_yield", "futex", "set_robust_list", "rseq", "set_tid_address", "arch_prctl", "restart_syscall",
    "exit", "exit_group", "wait4", "waitid", "vfork", "fork", "execve", "tgkill", "membarrier", "capget",
};

constexpr std::array kReaderCalls = {
    "read", "write", "pread64", "pwrite64", "readv", "writev", "preadv", "pwritev", "openat2", "close", "fstat", "newfstatat", "statx", "lseek",
    "readlinkat", "fgetxattr", "flistxattr", "getdents64", "mmap", "munmap", "mprotect", "mremap", "brk", "madvise", "fadvise64", "fallocate",
    "ftruncate", "copy_file_range", "fcntl", "poll", "ppoll", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "getpid", "gettid",
    "getrandom", "prlimit64", "gettimeofday", "clock_gettime", "clock_nanosleep", "sched_yield", "futex", "restart_syscall", "exit", "exit_group",
    "tgkill", "membarrier", "set_robust_list", "rseq", "sched_getaffinity", "capget",
};

constexpr std::array kPackageRefusals = {
    "io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "perf_event_open", "userfaultfd", "keyctl", "add_key", "request_key",
    "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot", "swapon", "swapoff", "settimeofday",
    "clock_settime", "adjtimex", "clock_adjtime", "acct", "quotactl", "open_by_handle_at", "name_to_handle_at", "ptrace", "process_vm_readv",
    "process_vm_writev", "kcmp", "syslog", "iopl", "ioperm", "lookup_dcookie", "vm86", "modify_ldt", "setns", "fsopen", "fsconfig", "fspick",
    "nfsservctl", "move_pages", "mbind", "migrate_pages", "pidfd_getfd", "landlock_create_ruleset",
};

// Flags of clone.
constexpr scmp_datum_t kNamespaces = 0x7e020080;
constexpr scmp_datum_t kThread = 0x00010000;

Result<void> failed(std::string_view doing, int code) { return errno_error(doing, -code); }

Result<void> load(const Filter& filter) {
  if (const int code = seccomp_load(filter.get()); code != 0) return failed("load the system call filter", code);
  return {};
}

Result<void> allow(const Filter& filter, std::span<const char* const> calls) {
  for (const char* name : calls) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number == __NR_SCMP_ERROR) continue;  // newer than this libseccomp: stays refused
    if (const int code = seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, number, 0); code != 0) return failed(name, code);
  }
  return {};
}

}  // namespace

Result<void> install_parser_filter() {
  const Filter filter(seccomp_init(SCMP_ACT_ERRNO(ENOSYS)));
  if (!filter) return Error(ErrorCode::kInternal, "cannot make a system call filter");
  DSEC_TRY(allow(filter, kParserCalls));
  // Threads and processes, but no namespace.
  if (const int code = seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(clone), 1, SCMP_A0(SCMP_CMP_MASKED_EQ, kNamespaces, 0)); code != 0) {
    return failed("clone", code);
  }
  // Programs ask files whether they are terminals or block devices.
  if (const int code = seccomp_rule_add(filter.get(), SCMP_ACT_ERRNO(ENOTTY), SCMP_SYS(ioctl), 0); code != 0) return failed("ioctl", code);
  return load(filter);
}

Result<void> install_reader_filter() {
  const Filter filter(seccomp_init(SCMP_ACT_ERRNO(ENOSYS)));
  if (!filter) return Error(ErrorCode::kInternal, "cannot make a system call filter");
  DSEC_TRY(allow(filter, kReaderCalls));
  // Threads alone: no process, no namespace.
  if (const int code = seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(clone), 1, SCMP_A0(SCMP_CMP_MASKED_EQ, kNamespaces | kThread, kThread)); code != 0) {
    return failed("clone", code);
  }
  return load(filter);
}

Result<void> install_package_filter() {
  const Filter filter(seccomp_init(SCMP_ACT_ALLOW));
  if (!filter) return Error(ErrorCode::kInternal, "cannot make a system call filter");
  for (const char* name : kPackageRefusals) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number == __NR_SCMP_ERROR) continue;
    const int code = seccomp_rule_add(filter.get(), SCMP_ACT_ERRNO(ENOSYS), number, 0);
    if (code != 0 && code != -EDOM) return failed(name, code);
  }
  return load(filter);
}

}  // namespace dsec::image
