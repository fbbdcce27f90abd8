#include "spawner/filter.h"

#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "protocol/agent_descriptors.h"

#ifndef __x86_64__
#error "The filter's lists are those of x86-64; another architecture needs its own."
#endif

namespace dsec::spawner {

namespace {

// Newer than the headers of Debian 12.
constexpr int kCachestat = 451, kMapShadowStack = 453, kFutexWake = 454, kFutexRequeue = 456,
              kMseal = 462, kOpenTreeAttr = 467;

struct Range {
  int first;
  int last;
};

// What programs use. Numbers between are named where they are refused, below.
constexpr Range kAllowed[] = {
    {SYS_read, SYS_rt_sigreturn},  // read … mprotect … rt_sigreturn
    {SYS_pread64, SYS_setitimer},
    {SYS_getpid, SYS_sendfile},
    {SYS_connect, SYS_socketpair},
    {SYS_setsockopt, SYS_getsockopt},
    {SYS_fork, SYS_gettimeofday},
    {SYS_getrlimit, SYS_times},
    {SYS_ptrace, SYS_ptrace},
    {SYS_getuid, SYS_getuid},
    {SYS_getgid, SYS_utime},
    {SYS_mknod, SYS_mknod},
    {SYS_statfs, SYS_munlockall},
    {SYS_prctl, SYS_arch_prctl},
    {SYS_setrlimit, SYS_sync},
    {SYS_mount, SYS_umount2},  // narrow_filter takes it
    {SYS_pivot_root, SYS_pivot_root},  // narrow_filter takes it
    {SYS_sethostname, SYS_setdomainname},
    {SYS_gettid, SYS_sched_getaffinity},
    {SYS_io_setup, SYS_io_cancel},
    {SYS_epoll_create, SYS_epoll_create},
    {SYS_remap_file_pages, SYS_tgkill},
    {SYS_utimes, SYS_utimes},
    {SYS_mbind, SYS_mq_getsetattr},
    {SYS_waitid, SYS_waitid},
    {SYS_ioprio_set, SYS_inotify_rm_watch},
    {SYS_openat, SYS_ppoll},
    {SYS_set_robust_list, SYS_vmsplice},
    {SYS_utimensat, SYS_rt_tgsigqueueinfo},
    {SYS_recvmmsg, SYS_recvmmsg},
    {SYS_prlimit64, SYS_name_to_handle_at},
    {SYS_syncfs, SYS_getcpu},  // with sendmmsg, setns: narrow_filter takes the last
    {SYS_process_vm_readv, SYS_process_vm_writev},
    {SYS_sched_setattr, SYS_memfd_create},
    {SYS_execveat, SYS_execveat},
    {SYS_membarrier, SYS_statx},
    {SYS_io_pgetevents, SYS_rseq},
    {SYS_pidfd_send_signal, SYS_pidfd_send_signal},
    {SYS_open_tree, SYS_pidfd_open},  // the mount calls: narrow_filter takes them
    {SYS_clone3, SYS_openat2},
    {SYS_faccessat2, SYS_process_madvise},
    {SYS_epoll_pwait2, SYS_mount_setattr},  // mount_setattr: narrow_filter takes it
    {SYS_landlock_create_ruleset, SYS_landlock_restrict_self},
    {SYS_process_mrelease, SYS_futex_waitv},
    {kCachestat, kMapShadowStack},
    {kFutexWake, kFutexRequeue},
    {kMseal, kMseal},
};

// Known, and refused with EPERM as a kernel without the right would: programs
// handle that better than a missing call. Checked before kAllowed.
constexpr int kRefused[] = {
    SYS_bpf, SYS_perf_event_open, SYS_userfaultfd, SYS_add_key, SYS_request_key, SYS_keyctl, SYS_open_by_handle_at,
    SYS_clock_settime, SYS_settimeofday, SYS_adjtimex, SYS_clock_adjtime, SYS_init_module, SYS_finit_module,
    SYS_delete_module, SYS_kexec_load, SYS_kexec_file_load, SYS_reboot, SYS_swapon, SYS_swapoff, SYS_acct,
    SYS_quotactl, SYS_quotactl_fd, SYS_syslog, SYS_iopl, SYS_ioperm, SYS_vhangup, SYS_modify_ldt, SYS_kcmp,
    SYS_move_pages, SYS_migrate_pages, SYS_fanotify_init, SYS_fanotify_mark, SYS_pidfd_getfd, SYS_memfd_secret,
    SYS_set_mempolicy_home_node, SYS_uselib, SYS_ustat, SYS_sysfs, SYS_nfsservctl, SYS_lookup_dcookie,
};
// Not built into today's kernels, or a way round this filter: as if absent.
constexpr int kAbsent[] = {SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register, SYS__sysctl,
                           SYS_create_module, SYS_get_kernel_syms, SYS_query_module, SYS_getpmsg, SYS_putpmsg,
                           SYS_afs_syscall, SYS_tuxcall, SYS_security, SYS_vserver};

constexpr std::uint32_t kNamespaceFlags = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |
                                          CLONE_NEWPID | CLONE_NEWNET;
constexpr std::uint32_t kNewTime = 0x80;  // CLONE_NEWTIME; in clone's flags it is part of the exit signal
// XFS's SWAPEXT, EXCHANGE_RANGE, START_COMMIT and COMMIT_RANGE, whatever their size field: they exchange the
// contents of files below permissions, times and notifications.
constexpr std::uint32_t kXfsExchanges[] = {0x586d, 0x5881, 0x5882, 0x5883};
constexpr std::uint32_t kTiocsti = 0x5412, kTioclinux = 0x541c;
constexpr std::uint32_t kNetlinkRoute = 0;

constexpr std::uint32_t errno_action(int number) { return SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(number); }

// Instructions in order; jumps are always over a fixed number of the next ones.
class Program {
 public:
  void load(std::size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)); }
  void load_number() { load(offsetof(seccomp_data, nr)); }
  void load_argument(int i) { load(offsetof(seccomp_data, args) + sizeof(std::uint64_t) * static_cast<std::size_t>(i)); }
  void keep_bits(std::uint32_t bits) { add(BPF_ALU | BPF_AND | BPF_K, bits); }
  void ret(std::uint32_t action) { add(BPF_RET | BPF_K, action); }
  void ret_if_equal(std::uint32_t value, std::uint32_t action) {
    add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
    ret(action);
  }
  void ret_unless_equal(std::uint32_t value, std::uint32_t action) {
    add(BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0);
    ret(action);
  }
  void ret_if_any_bit(std::uint32_t bits, std::uint32_t action) {
    add(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1);
    ret(action);
  }
  void ret_if_in(Range range, std::uint32_t action) {
    if (range.first == range.last) return ret_if_equal(static_cast<std::uint32_t>(range.first), action);
    add(BPF_JMP | BPF_JGE | BPF_K, static_cast<std::uint32_t>(range.first), 0, 2);
    add(BPF_JMP | BPF_JGT | BPF_K, static_cast<std::uint32_t>(range.last), 1, 0);
    ret(action);
  }
  // Skips `body` unless the loaded value equals `value`. `body` always returns.
  template <typename Body>
  void when_equal(std::uint32_t value, Body body) {
    const std::size_t at = code_.size();
    add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 0);
    body();
    const std::size_t skipped = code_.size() - at - 1;
    DSEC_CHECK(skipped <= 255);  // a conditional jump's reach
    code_[at].jf = static_cast<std::uint8_t>(skipped);
  }
  std::vector<sock_filter> take() { return std::move(code_); }

 private:
  void add(int code, std::uint32_t k, std::uint8_t jt = 0, std::uint8_t jf = 0) {
    code_.push_back({static_cast<std::uint16_t>(code), jt, jf, k});
  }
  std::vector<sock_filter> code_;
};

void socket_rules(Program& p) {
  p.when_equal(SYS_socket, [&] {
    p.load_argument(0);
    p.ret_if_equal(AF_UNIX, SECCOMP_RET_ALLOW);
    for (std::uint32_t family : {std::uint32_t{AF_INET}, std::uint32_t{AF_INET6}})
      p.when_equal(family, [&] {
        p.load_argument(2);
        for (std::uint32_t protocol : {0, 1, 6, 17, 58, 255})  // default, ICMP, TCP, UDP, ICMPv6, raw
          p.ret_if_equal(protocol, SECCOMP_RET_ALLOW);
        p.ret(errno_action(EPROTONOSUPPORT));
      });
    p.when_equal(AF_NETLINK, [&] {
      p.load_argument(2);
      p.ret_if_equal(kNetlinkRoute, SECCOMP_RET_ALLOW);
      p.ret(errno_action(EPROTONOSUPPORT));
    });
    p.ret(errno_action(EAFNOSUPPORT));
  });
  p.when_equal(SYS_socketpair, [&] {
    p.load_argument(0);
    p.ret_if_equal(AF_UNIX, SECCOMP_RET_ALLOW);
    p.ret(errno_action(EAFNOSUPPORT));
  });
}

void argument_rules(Program& p) {
  // The kernel reads ioctl's command as 32 bits, so the upper half is no way round.
  p.when_equal(SYS_ioctl, [&] {
    p.load_argument(1);
    for (std::uint32_t command : {kTiocsti, kTioclinux}) p.ret_if_equal(command, errno_action(EPERM));
    p.keep_bits(0xffff);
    for (std::uint32_t command : kXfsExchanges) p.ret_if_equal(command, errno_action(EPERM));
    p.ret(SECCOMP_RET_ALLOW);
  });
  socket_rules(p);
  p.when_equal(SYS_clone, [&] {
    p.load_argument(0);
    p.ret_if_any_bit(kNamespaceFlags, errno_action(EPERM));
    p.ret(SECCOMP_RET_ALLOW);
  });
  p.when_equal(SYS_unshare, [&] {
    p.load_argument(0);
    p.ret_if_any_bit(kNamespaceFlags | kNewTime, errno_action(EPERM));
    p.ret(SECCOMP_RET_ALLOW);
  });
  p.when_equal(SYS_personality, [&] {
    p.load_argument(0);
    // PER_LINUX, PER_LINUX32, UNAME26, ADDR_NO_RANDOMIZE (a debugger's), and the query.
    for (std::uint32_t persona : {0u, 8u, 0x20000u, 0x20008u, 0x40000u, 0xffffffffu})
      p.ret_if_equal(persona, SECCOMP_RET_ALLOW);
    p.ret(errno_action(EPERM));
  });
}

}  // namespace

std::vector<sock_filter> broad_filter() {
  Program p;
  p.load(offsetof(seccomp_data, arch));
  p.ret_unless_equal(AUDIT_ARCH_X86_64, SECCOMP_RET_KILL_PROCESS);
  p.load_number();
  p.ret_if_any_bit(0x40000000u, SECCOMP_RET_KILL_PROCESS);  // x32, and -1
  argument_rules(p);
  for (int number : kRefused) p.ret_if_equal(static_cast<std::uint32_t>(number), errno_action(EPERM));
  for (int number : kAbsent) p.ret_if_equal(static_cast<std::uint32_t>(number), errno_action(ENOSYS));
  for (Range range : kAllowed) p.ret_if_in(range, SECCOMP_RET_ALLOW);
  p.ret(errno_action(ENOSYS));
  return p.take();
}

std::vector<sock_filter> narrow_filter() {
  Program p;
  p.load_number();
  p.ret_if_in({SYS_mount, SYS_umount2}, errno_action(EPERM));
  p.ret_if_equal(SYS_pivot_root, errno_action(EPERM));
  p.ret_if_in({SYS_open_tree, SYS_fspick}, errno_action(EPERM));
  p.ret_if_equal(SYS_mount_setattr, errno_action(EPERM));
  p.ret_if_equal(kOpenTreeAttr, errno_action(EPERM));
  p.when_equal(SYS_setns, [&] {
    p.load_argument(0);
    p.when_equal(protocol::kInnerUserNamespaceFd, [&] {
      p.load_argument(1);
      p.ret_if_equal(CLONE_NEWUSER, SECCOMP_RET_ALLOW);
      p.ret(errno_action(EPERM));
    });
    p.ret(errno_action(EPERM));
  });
  p.ret(SECCOMP_RET_ALLOW);
  return p.take();
}

Result<void> load_filter(const std::vector<sock_filter>& program) {
  sock_fprog filter{static_cast<unsigned short>(program.size()), const_cast<sock_filter*>(program.data())};
  if (::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) < 0) return errno_error("load the seccomp filter", errno);
  return {};
}

}  // namespace dsec::spawner
