// One attack an invocation, by name; prints "refused: reason" or "DONE". Linked
// statically, so that it runs in any root filesystem.
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>

namespace {

long result(long r) { return r; }

long open_write(const char* path) { return ::open(path, O_WRONLY); }
long open_read(const char* path) {
  const int fd = ::open(path, O_RDONLY);
  if (fd < 0) return -1;
  char byte;
  const ssize_t n = ::read(fd, &byte, 1);
  if (n == 0) errno = ENODATA;  // masked by an empty file
  return n > 0 ? 0 : -1;
}

long clone3_flags(unsigned long flags) {
  struct {
    std::uint64_t words[11];
  } args{};
  args.words[0] = flags;
  args.words[4] = SIGCHLD;
  const long pid = ::syscall(SYS_clone3, &args, 88);
  if (pid == 0) ::_exit(0);
  return pid;
}

// In a child, since a working defence kills it.
long int80() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    long r;
    asm volatile("int $0x80" : "=a"(r) : "a"(20L) : "memory");  // getpid of i386
    ::_exit(r > 0 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (WIFSIGNALED(status)) errno = ECHILD;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}
long x32() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    const long r = ::syscall(0x40000000 | SYS_getpid);
    ::_exit(r > 0 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (WIFSIGNALED(status)) errno = ECHILD;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}

long setns_of(const char* path) {
  const int fd = ::open(path, O_RDONLY);
  if (fd < 0) return -1;
  // The filter lets the number 4 through to the kernel: use it.
  ::dup2(fd, 4);
  return ::setns(4, CLONE_NEWUSER);
}

struct Attack {
  const char* name;
  long (*run)();
};

constexpr Attack kAttacks[] = {
    {"umount-root", [] { return result(::umount2("/", MNT_DETACH)); }},
    {"umount-dev", [] { return result(::umount2("/dev", MNT_DETACH)); }},
    {"umount-mask", [] { return result(::umount2("/proc/keys", MNT_DETACH)); }},
    {"mount-tmpfs", [] { return result(::mount("t", "/tmp", "tmpfs", 0, nullptr)); }},
    {"bind", [] { return result(::mount("/bin", "/tmp", nullptr, MS_BIND, nullptr)); }},
    {"remount-dev-rw", [] { return result(::mount(nullptr, "/dev", nullptr, MS_REMOUNT | MS_BIND, nullptr)); }},
    {"remount-root-dev", [] { return result(::mount(nullptr, "/", nullptr, MS_REMOUNT | MS_BIND, nullptr)); }},
    {"pivot-root", [] { return ::syscall(SYS_pivot_root, ".", "."); }},
    {"open-tree", [] { return ::syscall(428, AT_FDCWD, "/", 1); }},
    {"fsopen", [] { return ::syscall(430, "tmpfs", 0); }},
    {"mknod-block", [] { return result(::mknod("/tmp/disk", S_IFBLK | 0600, makedev(254, 0))); }},
    {"mknod-char", [] { return result(::mknod("/tmp/kmsg", S_IFCHR | 0600, makedev(1, 11))); }},
    {"create-in-dev", [] { return result(::open("/dev/x", O_CREAT | O_WRONLY, 0600)); }},
    {"write-sys", [] { return open_write("/sys/kernel/mm/ksm/run"); }},
    {"core-pattern", [] { return open_write("/proc/sys/kernel/core_pattern"); }},
    {"sysrq", [] { return open_write("/proc/sysrq-trigger"); }},
    {"ip-forward", [] { return open_write("/proc/sys/net/ipv4/ip_forward"); }},
    {"max-user-namespaces", [] { return open_write("/proc/sys/user/max_user_namespaces"); }},
    {"hostname", [] { return result(::sethostname("x", 1)); }},
    {"read-keys", [] { return open_read("/proc/keys"); }},
    {"read-timer-list", [] { return open_read("/proc/timer_list"); }},
    {"read-kmsg", [] { return open_read("/proc/kmsg"); }},
    {"read-kcore", [] { return open_read("/proc/kcore"); }},
    {"read-kallsyms", [] { return open_read("/proc/kallsyms"); }},
    {"read-kpagecgroup", [] { return open_read("/proc/kpagecgroup"); }},
    {"read-interrupts", [] { return open_read("/proc/interrupts"); }},
    {"ptrace-1", [] { return ::ptrace(PTRACE_ATTACH, 1, nullptr, nullptr); }},
    {"ptrace-seize-1", [] { return ::ptrace(PTRACE_SEIZE, 1, nullptr, nullptr); }},
    {"mem-1", [] { return open_read("/proc/1/mem"); }},
    {"environ-1", [] { return open_read("/proc/1/environ"); }},
    {"maps-1", [] { return open_read("/proc/1/maps"); }},
    {"exe-1", [] { char b[64]; return result(::readlink("/proc/1/exe", b, sizeof b)); }},
    {"fd-1", [] { return result(::open("/proc/1/fd", O_RDONLY | O_DIRECTORY)) < 0 ? -1L : open_read("/proc/1/fd/3"); }},
    {"root-1", [] { return result(::open("/proc/1/root/etc", O_RDONLY)); }},
    {"vm-readv-1", [] { char b; iovec l{&b, 1}, r{reinterpret_cast<void*>(0x400000), 1}; return result(::process_vm_readv(1, &l, 1, &r, 1, 0)); }},
    {"pidfd-getfd-1", [] { const long p = ::syscall(SYS_pidfd_open, 1, 0); return ::syscall(SYS_pidfd_getfd, p, 3, 0); }},
    {"kill-1", [] { return result(::kill(1, SIGKILL)); }},
    {"setns-1", [] { return setns_of("/proc/1/ns/user"); }},
    {"setns-self", [] { return setns_of("/proc/self/ns/user"); }},
    {"setns-mount", [] { return result(::setns(::open("/proc/self/ns/mnt", O_RDONLY), CLONE_NEWNS)); }},
    {"unshare-user", [] { return result(::unshare(CLONE_NEWUSER)); }},
    {"unshare-mount", [] { return result(::unshare(CLONE_NEWNS)); }},
    {"unshare-time", [] { return result(::unshare(0x80)); }},
    {"clone3-user", [] { return clone3_flags(CLONE_NEWUSER); }},
    {"clone3-user-net", [] { return clone3_flags(CLONE_NEWUSER | CLONE_NEWNET); }},
    {"clone3-mount", [] { return clone3_flags(CLONE_NEWNS); }},
    {"clone-user", [] { const long p = ::syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0); if (p == 0) ::_exit(0); return p; }},
    {"vsock", [] { return result(::socket(AF_VSOCK, SOCK_STREAM, 0)); }},
    {"packet", [] { return result(::socket(AF_PACKET, SOCK_RAW, 0)); }},
    {"raw", [] { return result(::socket(AF_INET, SOCK_RAW, 1)); }},
    {"alg", [] { return result(::socket(AF_ALG, SOCK_SEQPACKET, 0)); }},
    {"netlink-audit", [] { return result(::socket(AF_NETLINK, SOCK_RAW, 9)); }},
    {"io-uring", [] { io_uring_params p{}; return ::syscall(SYS_io_uring_setup, 4, &p); }},
    {"bpf", [] { return ::syscall(SYS_bpf, 0, nullptr, 0); }},
    {"perf", [] { return ::syscall(SYS_perf_event_open, nullptr, 0, -1, -1, 0); }},
    {"keyctl", [] { return ::syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, -3, 0); }},
    {"add-key", [] { return ::syscall(SYS_add_key, "user", "x", "x", 1, -3); }},
    {"userfaultfd", [] { return ::syscall(SYS_userfaultfd, 1); }},
    {"clock-settime", [] { timespec t{}; return result(::clock_settime(CLOCK_REALTIME, &t)); }},
    {"settimeofday", [] { timeval t{}; return result(::settimeofday(&t, nullptr)); }},
    {"open-by-handle", [] { struct file_handle h {}; return result(::open_by_handle_at(AT_FDCWD, &h, O_RDONLY)); }},
    {"unknown-call", [] { return ::syscall(4000); }},
    {"int80", int80},
    {"x32", x32},
    {"tiocsti", [] { const int fd = ::open("/dev/ptmx", O_RDWR); char c = 'x'; return result(::ioctl(fd, TIOCSTI, &c)); }},
    {"xfs-swapext", [] { const int fd = ::open("/tmp", O_RDONLY); return result(::ioctl(fd, 0xc0c0586dul, nullptr)); }},
    {"chown-unmapped", [] { const int fd = ::open("/tmp/o", O_CREAT | O_WRONLY, 0600); return result(::fchown(fd, 65536, 65536)); }},
};

}  // namespace

int main(int argc, char** argv) {
  const std::string_view wanted = argc > 1 ? argv[1] : "";
  for (const Attack& attack : kAttacks) {
    if (wanted != "all" && wanted != attack.name) continue;
    errno = 0;
    const bool done = attack.run() >= 0;
    std::printf("%s: %s%s\n", attack.name, done ? "DONE" : "refused: ", done ? "" : std::strerror(errno));
    std::fflush(stdout);
  }
  return 0;
}
