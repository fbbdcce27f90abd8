// One static program of harmless probes, run inside a sandbox and, as the
// negative control, on the host. It carries no exploit: each probe asks whether
// the precondition of an attack is gone. Calls use arguments that have no effect
// even where nothing refuses them.
//
// Output: "name value" lines; value is 0, an errno name, or SIG<number>.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/reboot.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "network.h"

static long files_tried;

static void report(const char* name, long result) {
  const int number = result < 0 ? errno : 0;
  const char* text = number == 0 ? "0" : strerrorname_np(number);
  printf("%s %s\n", name, text != NULL ? text : "?");
  fflush(stdout);
}

// Runs one probe in a child, because a filter may kill the caller.
#define CHILD_PROBE(name, expression)                     \
  do {                                                    \
    fflush(stdout);                                       \
    const pid_t child_ = fork();                          \
    if (child_ == 0) {                                    \
      errno = 0;                                          \
      const long result_ = (long)(expression);            \
      report(name, result_);                              \
      _exit(0);                                           \
    }                                                     \
    int status_ = 0;                                      \
    if (child_ < 0) {                                     \
      report(name, -1);                                   \
    } else if (waitpid(child_, &status_, 0) == child_ && WIFSIGNALED(status_)) { \
      printf("%s SIG%d\n", name, WTERMSIG(status_));      \
      fflush(stdout);                                     \
    }                                                     \
  } while (0)

static long clone_new_user(void) {
  const long pid = syscall(SYS_clone, (unsigned long)(CLONE_NEWUSER | SIGCHLD), 0, 0, 0, 0);
  if (pid == 0) _exit(0);
  if (pid > 0) waitpid((pid_t)pid, NULL, 0);
  return pid > 0 ? 0 : pid;
}

struct clone3_arguments {
  uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};
static long clone3_flags(uint64_t flags) {
  struct clone3_arguments arguments = {.flags = flags, .exit_signal = SIGCHLD};
  const long pid = syscall(SYS_clone3, &arguments, sizeof arguments);
  if (pid == 0) _exit(0);
  if (pid > 0) waitpid((pid_t)pid, NULL, 0);
  return pid > 0 ? 0 : pid;
}

static long int80_getpid(void) {
  long result;
  __asm__ volatile("int $0x80" : "=a"(result) : "a"(20L) : "memory", "r8", "r9", "r10", "r11");
  if (result < 0) {
    errno = (int)-result;
    return -1;
  }
  return result;
}

static long swap_extents(void) {
  char path[] = "/tmp/probe-swap-XXXXXX";
  const int fd = mkstemp(path);
  unlink(path);
  char request[256] = {0};
  return ioctl(fd, 0xc0c0586dUL, request);
}

static long push_terminal_input(void) {
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0) return -1;
  grantpt(master);
  unlockpt(master);
  setsid();
  const int slave = open(ptsname(master), O_RDWR);
  if (slave < 0) return -1;
  char byte = 'x';
  return ioctl(slave, TIOCSTI, &byte);
}

static long suspend_seccomp(void) {
  const pid_t child = fork();
  if (child == 0) {
    raise(SIGSTOP);
    _exit(0);
  }
  const long result = ptrace(PTRACE_SEIZE, child, 0, 0x00200000L /* PTRACE_O_SUSPEND_SECCOMP */);
  const int saved = errno;
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  errno = saved;
  return result;
}

static int probe_calls(void) {
  // A number no kernel has; the filter answers like an old kernel.
  CHILD_PROBE("unknown_600", syscall(600));
  CHILD_PROBE("unknown_4000", syscall(4000));
  CHILD_PROBE("io_uring_setup", syscall(SYS_io_uring_setup, 0, NULL));
  CHILD_PROBE("io_uring_enter", syscall(SYS_io_uring_enter, -1, 0, 0, 0, NULL, 0));
  CHILD_PROBE("io_uring_register", syscall(SYS_io_uring_register, -1, 0, NULL, 0));
  CHILD_PROBE("unshare_user", unshare(CLONE_NEWUSER));
  CHILD_PROBE("unshare_mount", unshare(CLONE_NEWNS));
  CHILD_PROBE("unshare_net", unshare(CLONE_NEWNET));
  CHILD_PROBE("unshare_pid", unshare(CLONE_NEWPID));
  CHILD_PROBE("unshare_cgroup", unshare(CLONE_NEWCGROUP));
  CHILD_PROBE("clone_user", clone_new_user());
  CHILD_PROBE("clone3_user", clone3_flags(CLONE_NEWUSER));
  CHILD_PROBE("clone3_mount", clone3_flags(CLONE_NEWNS));
  CHILD_PROBE("clone3_plain", clone3_flags(0));
  CHILD_PROBE("setns", setns(-1, 0));
  CHILD_PROBE("mount", mount(NULL, NULL, NULL, 0, NULL));
  CHILD_PROBE("mount_tmpfs", mount("none", "/nonexistent", "tmpfs", 0, NULL));
  CHILD_PROBE("umount2", umount2("/nonexistent", 0));
  CHILD_PROBE("pivot_root", syscall(SYS_pivot_root, "/nonexistent", "/nonexistent"));
  CHILD_PROBE("open_tree", syscall(SYS_open_tree, -1, "nonexistent", 0));
  CHILD_PROBE("move_mount", syscall(SYS_move_mount, -1, "nonexistent", -1, "nonexistent", 0));
  CHILD_PROBE("fsopen", syscall(SYS_fsopen, "nonexistentfs", 0));
  CHILD_PROBE("fsconfig", syscall(SYS_fsconfig, -1, 0, NULL, NULL, 0));
  CHILD_PROBE("fsmount", syscall(SYS_fsmount, -1, 0, 0));
  CHILD_PROBE("fspick", syscall(SYS_fspick, -1, "nonexistent", 0));
  CHILD_PROBE("mount_setattr", syscall(SYS_mount_setattr, -1, "nonexistent", 0, NULL, 0));
  CHILD_PROBE("bpf", syscall(SYS_bpf, 0, NULL, 0));
  CHILD_PROBE("perf_event_open", syscall(SYS_perf_event_open, NULL, 0, -1, -1, 0));
  CHILD_PROBE("add_key", syscall(SYS_add_key, NULL, NULL, NULL, 0, 0));
  CHILD_PROBE("request_key", syscall(SYS_request_key, NULL, NULL, NULL, 0));
  CHILD_PROBE("keyctl", syscall(SYS_keyctl, 9999, 0, 0, 0, 0));
  CHILD_PROBE("userfaultfd", syscall(SYS_userfaultfd, ~0));
  CHILD_PROBE("clock_settime", clock_settime(99, &(struct timespec){0}));
  CHILD_PROBE("clock_adjtime", clock_adjtime(99, &(struct timex){0}));
  CHILD_PROBE("adjtimex", syscall(SYS_adjtimex, NULL));
  CHILD_PROBE("settimeofday", syscall(SYS_settimeofday, &(struct timeval){.tv_sec = -1, .tv_usec = 9999999}, NULL));
  CHILD_PROBE("init_module", syscall(SYS_init_module, NULL, 0, NULL));
  CHILD_PROBE("finit_module", syscall(SYS_finit_module, -1, NULL, 0xffff));
  CHILD_PROBE("delete_module", syscall(SYS_delete_module, NULL, 0));
  CHILD_PROBE("kexec_load", syscall(SYS_kexec_load, 0, 9999, NULL, ~0UL));
  CHILD_PROBE("reboot", syscall(SYS_reboot, 0, 0, 0, NULL));
  CHILD_PROBE("swapon", syscall(SYS_swapon, NULL, 0));
  CHILD_PROBE("swapoff", syscall(SYS_swapoff, NULL));
  CHILD_PROBE("quotactl", syscall(SYS_quotactl, ~0, NULL, 0, NULL));
  CHILD_PROBE("acct", syscall(SYS_acct, "/nonexistent"));
  CHILD_PROBE("iopl", syscall(SYS_iopl, 99));
  CHILD_PROBE("ioperm", syscall(SYS_ioperm, ~0UL, ~0UL, 1));
  CHILD_PROBE("open_by_handle_at", syscall(SYS_open_by_handle_at, -1, NULL, 0));
  CHILD_PROBE("kcmp", syscall(SYS_kcmp, getpid(), getpid(), 99, 0, 0));
  CHILD_PROBE("fanotify_init", syscall(SYS_fanotify_init, ~0, 0));
  CHILD_PROBE("int80", int80_getpid());
  CHILD_PROBE("x32_getpid", syscall(0x40000000 | SYS_getpid));
  CHILD_PROBE("swap_extents", swap_extents());
  CHILD_PROBE("tiocsti", push_terminal_input());
  CHILD_PROBE("suspend_seccomp", suspend_seccomp());
  CHILD_PROBE("mknod_block", mknod("/tmp/probe-block", S_IFBLK | 0600, makedev(7, 0)));
  CHILD_PROBE("mknod_char", mknod("/tmp/probe-char", S_IFCHR | 0600, makedev(1, 1)));
  CHILD_PROBE("scheduler_rt", sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1}));
  CHILD_PROBE("rlimit_raise", setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_cur = 1 << 24, .rlim_max = 1 << 24}));
  unlink("/tmp/probe-block");
  unlink("/tmp/probe-char");
  // The families that must work, and a call that every program makes.
  CHILD_PROBE("getpid", getpid());
  return 0;
}

static int probe_families(void) {
  for (int family = 0; family < 46; ++family) {
    const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET};
    int best = EAFNOSUPPORT;
    for (int i = 0; i < 4; ++i) {
      const int fd = socket(family, types[i] | SOCK_CLOEXEC, 0);
      if (fd >= 0) {
        close(fd);
        best = 0;
        break;
      }
      if (best == EAFNOSUPPORT) best = errno;
    }
    printf("family_%d %s\n", family, best == 0 ? "0" : strerrorname_np(best));
  }
  // Of netlink only the route family is for sandboxes.
  for (int protocol = 0; protocol < 23; ++protocol) {
    const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
    printf("netlink_%d %s\n", protocol, fd >= 0 ? "0" : strerrorname_np(errno));
    if (fd >= 0) close(fd);
  }
  return 0;
}

static void try_open(const char* name, const char* path, int flags) {
  const int fd = open(path, flags | O_CLOEXEC);
  report(name, fd);
  if (fd >= 0) close(fd);
}

// Everything that one process may try on another: `pid` is a platform process.
static int probe_process(int pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/mem", pid);
  try_open("mem", path, O_RDWR);
  try_open("mem_read", path, O_RDONLY);
  snprintf(path, sizeof path, "/proc/%d/environ", pid);
  const int environment = open(path, O_RDONLY | O_CLOEXEC);
  char byte;
  report("environ", environment < 0 ? -1 : read(environment, &byte, 1) < 0 ? -1 : 0);
  snprintf(path, sizeof path, "/proc/%d/exe", pid);
  try_open("exe_write", path, O_WRONLY);
  try_open("exe_read", path, O_RDONLY);
  char target[256];
  report("exe_link", readlink(path, target, sizeof target));
  snprintf(path, sizeof path, "/proc/%d/fd", pid);
  try_open("fd_list", path, O_RDONLY | O_DIRECTORY);
  snprintf(path, sizeof path, "/proc/%d/fd/0", pid);
  try_open("fd_0", path, O_RDONLY);
  snprintf(path, sizeof path, "/proc/%d/fd/3", pid);
  try_open("fd_3", path, O_RDWR);
  snprintf(path, sizeof path, "/proc/%d/maps", pid);
  const int maps = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t got = maps < 0 ? -1 : read(maps, &byte, 1);
  if (got == 0) errno = EACCES;  // an empty file tells nothing
  report("maps", got == 1 ? 0 : -1);
  snprintf(path, sizeof path, "/proc/%d/root", pid);
  try_open("root", path, O_RDONLY | O_DIRECTORY);
  snprintf(path, sizeof path, "/proc/%d/cwd", pid);
  try_open("cwd", path, O_RDONLY | O_DIRECTORY);
  const char* spaces[] = {"mnt", "pid", "net", "user", "ipc", "uts", "cgroup"};
  for (int i = 0; i < 7; ++i) {
    char name[32];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, spaces[i]);
    snprintf(name, sizeof name, "ns_%s", spaces[i]);
    try_open(name, path, O_RDONLY);
  }
  const long attached = ptrace(PTRACE_ATTACH, pid, 0, 0);
  report("ptrace_attach", attached);
  if (attached == 0) {
    waitpid(pid, NULL, __WALL);
    ptrace(PTRACE_DETACH, pid, 0, 0);
  }
  const long seized = ptrace(PTRACE_SEIZE, pid, 0, 0);
  report("ptrace_seize", seized);
  if (seized == 0) ptrace(PTRACE_DETACH, pid, 0, 0);
  struct iovec local = {&byte, 1};
  struct iovec remote = {(void*)0x400000, 1};
  long moved = process_vm_readv(pid, &local, 1, &remote, 1, 0);
  if (moved < 0 && errno == EFAULT) moved = 0;  // past the permission check
  report("vm_readv", moved);
  moved = process_vm_writev(pid, &local, 0, &remote, 0, 0);
  report("vm_writev_empty", moved);
  const int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
  report("pidfd_getfd", pidfd < 0 ? -1 : syscall(SYS_pidfd_getfd, pidfd, 0, 0));
  report("prlimit", syscall(SYS_prlimit64, pid, RLIMIT_NOFILE, NULL, &(struct rlimit){0}));
  report("setpriority", setpriority(PRIO_PROCESS, (id_t)pid, 19));
  struct sched_param parameter = {0};
  report("sched_setscheduler", sched_setscheduler(pid, SCHED_IDLE, &parameter));
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(0, &set);
  report("sched_setaffinity", sched_setaffinity(pid, sizeof set, &set));
  snprintf(path, sizeof path, "/proc/%d/oom_score_adj", pid);
  try_open("oom_score_adj", path, O_WRONLY);
  snprintf(path, sizeof path, "/proc/%d/comm", pid);
  const int comm = open(path, O_WRONLY | O_CLOEXEC);
  report("comm_write", comm < 0 ? -1 : write(comm, "x", 1));
  return 0;
}

// Tries every regular file below a directory, on its file system, for writing.
static void try_writable(const char* directory, int depth, int below) {
  DIR* stream = depth > 12 ? NULL : opendir(directory);
  for (struct dirent* entry; stream != NULL && (entry = readdir(stream)) != NULL;) {
    if (entry->d_name[0] == '.' && (entry->d_name[1] == 0 || strcmp(entry->d_name, "..") == 0)) continue;
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
    if (entry->d_type == DT_DIR && below) try_writable(path, depth + 1, 1);
    if (entry->d_type != DT_REG) continue;
    ++files_tried;
    const int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) continue;
    printf("%s\n", path);
    close(fd);
  }
  if (stream != NULL) closedir(stream);
}

// The processes that hold none of this program's user namespace: the platform's.
static int list_foreign(void) {
  char own[64] = "", other[64];
  const ssize_t length = readlink("/proc/self/ns/user", own, sizeof own - 1);
  DIR* proc = opendir("/proc");
  for (struct dirent* entry; (entry = readdir(proc)) != NULL;) {
    const int pid = atoi(entry->d_name);
    if (pid <= 0) continue;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
    const ssize_t got = readlink(path, other, sizeof other - 1);
    if (got == length && memcmp(own, other, (size_t)length) == 0) continue;
    char comm[32] = "?";
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    FILE* file = fopen(path, "r");
    if (file != NULL) {
      if (fgets(comm, sizeof comm, file) != NULL) comm[strcspn(comm, "\n")] = 0;
      fclose(file);
    }
    printf("%d %s\n", pid, comm);
  }
  closedir(proc);
  return 0;
}

static void hunt_in(int pid) {
  char path[300], text[4096];
  snprintf(path, sizeof path, "/proc/%d/environ", pid);
  const int environment = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t got = environment < 0 ? -1 : read(environment, text, sizeof text);
  if (got > 0 && memmem(text, (size_t)got, "DSEC_", 5) != NULL) printf("HIT environ %d\n", pid);
  if (environment >= 0) close(environment);
  snprintf(path, sizeof path, "/proc/%d/fd", pid);
  DIR* table = opendir(path);
  for (struct dirent* entry; table != NULL && (entry = readdir(table)) != NULL;) {
    if (entry->d_name[0] == '.' || atoi(entry->d_name) <= 2) continue;
    snprintf(path, sizeof path, "/proc/%d/fd/%s", pid, entry->d_name);
    const ssize_t length = readlink(path, text, sizeof text - 1);
    if (length > 0) printf("HIT fd %d %s %.*s\n", pid, entry->d_name, (int)length, text);
  }
  if (table != NULL) closedir(table);
}

// For so many milliseconds, looks into every process that comes by for what only
// the platform has: its environment, and descriptors past the standard three.
// Children of the platform share its memory until they run their own program.
static int hunt(long milliseconds) {
  struct timespec now, end;
  clock_gettime(CLOCK_MONOTONIC, &end);
  end.tv_sec += milliseconds / 1000;
  long rounds = 0, seen = 0;
  do {
    DIR* proc = opendir("/proc");
    for (struct dirent* entry; proc != NULL && (entry = readdir(proc)) != NULL;) {
      const int pid = atoi(entry->d_name);
      if (pid <= 0 || pid == getpid()) continue;
      if (pid != 1) ++seen;
      hunt_in(pid);
    }
    if (proc != NULL) closedir(proc);
    ++rounds;
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while (now.tv_sec < end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec < end.tv_nsec));
  printf("rounds %ld\nseen %ld\n", rounds, seen);
  return 0;
}

static int list_fds(void) {
  DIR* directory = opendir("/proc/self/fd");
  for (struct dirent* entry; (entry = readdir(directory)) != NULL;) {
    if (entry->d_name[0] == '.') continue;
    const int fd = atoi(entry->d_name);
    if (fd == dirfd(directory)) continue;
    char path[64], target[256] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (readlink(path, target, sizeof target - 1) < 0) target[0] = 0;
    printf("%d %s\n", fd, target);
  }
  return 0;
}

static int connect_unix(const char* name, socklen_t length) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  memcpy(address.sun_path, name, length);
  const int kinds[] = {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM};
  int result = -1, number = ENOENT;
  for (int i = 0; i < 3 && result != 0; ++i) {
    const int fd = socket(AF_UNIX, kinds[i] | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);  // a full backlog waits for ever
    if (fd < 0) continue;
    result = connect(fd, (struct sockaddr*)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length));
    number = errno;
    close(fd);
  }
  errno = number;
  return result;
}

// One abstract socket, by name.
static int probe_abstract(const char* canary) {
  char name[108] = {0};
  strncpy(name + 1, canary, sizeof name - 2);
  report("abstract", connect_unix(name, (socklen_t)(1 + strlen(canary))));
  return 0;
}

// Connects to every socket that /proc/net/unix names. "@name" is abstract.
static int probe_unix(void) {
  int seen = 0, connected = 0;
  FILE* table = fopen("/proc/net/unix", "r");
  char line[512];
  while (table != NULL && fgets(line, sizeof line, table) != NULL) {
    char path[256] = "";
    if (sscanf(line, "%*s %*s %*s %*s %*s %*s %*s %255s", path) != 1 || strcmp(path, "Path") == 0) continue;
    ++seen;
    socklen_t length = (socklen_t)strlen(path);
    if (path[0] == '@') path[0] = 0;
    if (connect_unix(path, length) == 0) ++connected;
  }
  printf("unix_seen %d\nunix_connected %d\n", seen, connected);
  return 0;
}

// Tries every TCP port of 127.0.0.1 and prints those that accept.
static int probe_ports(void) {
  for (int port = 1; port < 65536; ++port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) break;
    struct sockaddr address = {.sa_family = AF_INET};
    address.sa_data[0] = (char)(port >> 8);
    address.sa_data[1] = (char)port;
    address.sa_data[2] = 127;
    address.sa_data[5] = 1;
    // A socket that was given the very port that it dials has met itself.
    struct sockaddr own;
    socklen_t length = sizeof own;
    if (connect(fd, &address, 16) == 0 && (getsockname(fd, &own, &length) != 0 || memcmp(own.sa_data, address.sa_data, 6) != 0))
      printf("tcp %d\n", port);
    close(fd);
  }
  printf("tcp done\n");
  return 0;
}

static int fork_bomb(int limit) {
  int made = 0, refused = 0;
  for (int i = 0; i < limit; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      pause();
      _exit(0);
    }
    if (child < 0) {
      ++refused;
      if (refused > 90) break;
    } else {
      ++made;
    }
  }
  printf("made %d\nrefused %d\n", made, refused);
  fflush(stdout);
  return 0;
}

static void* sleep_in_thread(void* argument) {
  pause();
  return argument;
}
static int thread_bomb(int limit) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 64 << 10);
  int made = 0;
  for (; made < limit; ++made) {
    pthread_t thread;
    if (pthread_create(&thread, &attributes, sleep_in_thread, NULL) != 0) break;
  }
  printf("made %d\n", made);
  fflush(stdout);
  _exit(0);
}

static int take_memory(long megabytes) {
  for (long i = 0; i < megabytes; ++i) {
    char* page = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
      report("mmap", -1);
      return 1;
    }
    memset(page, 1, 1 << 20);
  }
  printf("took %ld\n", megabytes);
  return 0;
}

static int fill_file(const char* path, long megabytes) {
  static char block[1 << 20];
  memset(block, 'x', sizeof block);
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  long written = 0;
  long result = fd;
  while (fd >= 0 && written < megabytes << 20) {
    result = write(fd, block, sizeof block);
    if (result < 0) break;
    written += result;
  }
  if (fd >= 0 && result >= 0) result = fsync(fd);
  report("fill", result);
  printf("bytes %ld\n", written);
  return 0;
}

static int fill_inodes(const char* directory, int limit) {
  int made = 0;
  long result = 0;
  for (; made < limit; ++made) {
    char path[256];
    snprintf(path, sizeof path, "%s/i%d", directory, made);
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
      result = -1;
      break;
    }
    close(fd);
  }
  report("inodes", result);
  printf("made %d\n", made);
  return 0;
}

static int open_many(int limit) {
  int made = 0;
  while (made < limit && open("/dev/null", O_RDONLY) >= 0) ++made;
  report("open", made < limit ? -1 : 0);
  printf("made %d\n", made);
  return 0;
}

// A process that signals, sessions and parents cannot find.
static int escape(const char* how, int seconds) {
  for (int number = 1; number < 65; ++number) signal(number, SIG_IGN);
  if (strchr(how, 'd') != NULL && fork() != 0) _exit(0);
  if (strchr(how, 's') != NULL) setsid();
  if (strchr(how, 'd') != NULL && fork() != 0) _exit(0);
  if (strchr(how, 'c') != NULL) {
    close(0);
    close(1);
    close(2);
  }
  if (strchr(how, 'n') != NULL) prctl(PR_SET_NAME, "kworker/0:1");
  for (int i = 0; i < seconds * 10; ++i) usleep(100000);
  return 0;
}

static int zombie_storm(int count) {
  signal(SIGCHLD, SIG_DFL);
  int made = 0;
  for (int i = 0; i < count; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      if (fork() == 0) _exit(0);  // an orphan for PID 1 to reap
      _exit(0);
    }
    if (child < 0) break;
    waitpid(child, NULL, 0);
    ++made;
  }
  printf("made %d\n", made);
  return 0;
}

static long files_read, bytes_read;
static void walk(const char* path, int depth, double deadline) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (depth > 8 || (double)now.tv_sec > deadline) return;
  DIR* directory = opendir(path);
  if (directory == NULL) return;
  for (struct dirent* entry; (entry = readdir(directory)) != NULL;) {
    if (entry->d_name[0] == '.') continue;
    char below[1024];
    if (snprintf(below, sizeof below, "%s/%s", path, entry->d_name) >= (int)sizeof below) continue;
    struct stat info;
    if (lstat(below, &info) != 0) continue;
    if (S_ISDIR(info.st_mode)) {
      walk(below, depth + 1, deadline);
    } else if (S_ISREG(info.st_mode)) {
      const int fd = open(below, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
      if (fd < 0) continue;
      char buffer[4096];
      const ssize_t got = read(fd, buffer, sizeof buffer);
      if (got > 0) bytes_read += got;
      ++files_read;
      close(fd);
    }
  }
  closedir(directory);
}

static int list_writable(int count, char** directories) {
  // Of /proc itself the files alone: what else is there is processes.
  for (int i = 0; i < count; ++i) try_writable(directories[i], 0, strcmp(directories[i], "/proc") != 0);
  printf("tried %ld\n", files_tried);
  return 0;
}

static int walk_pseudo_files(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  walk("/proc", 0, (double)now.tv_sec + 30);
  walk("/sys", 0, (double)now.tv_sec + 30);
  printf("files %ld\nbytes %ld\n", files_read, bytes_read);
  return 0;
}

int main(int argc, char** argv) {
  const char* verb = argc > 1 ? argv[1] : "";
  const char* text = argc > 2 ? argv[2] : NULL;
  const long number = argc > 2 ? atol(argv[argc - 1]) : 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (strcmp(verb, "calls") == 0) return probe_calls();
  if (strcmp(verb, "families") == 0) return probe_families();
  if (strcmp(verb, "process") == 0) return probe_process((int)number);
  if (strcmp(verb, "foreign") == 0) return list_foreign();
  if (strcmp(verb, "fds") == 0) return list_fds();
  if (strcmp(verb, "hunt") == 0) return hunt(number);
  if (strcmp(verb, "unix") == 0) return probe_unix();
  if (strcmp(verb, "abstract") == 0 && text != NULL) return probe_abstract(text);
  if (strcmp(verb, "ports") == 0) return probe_ports();
  if (strcmp(verb, "kill-all") == 0) {
    report("kill_all", kill(-1, (int)number));
    return 0;
  }
  if (strcmp(verb, "kill") == 0 && argc == 4) {
    report("kill", kill(atoi(argv[2]), atoi(argv[3])));
    return 0;
  }
  if (strcmp(verb, "forkbomb") == 0) return fork_bomb((int)number);
  if (strcmp(verb, "threads") == 0) return thread_bomb((int)number);
  if (strcmp(verb, "memory") == 0) return take_memory(number);
  if (strcmp(verb, "fill") == 0 && argc == 4) return fill_file(text, number);
  if (strcmp(verb, "inodes") == 0 && argc == 4) return fill_inodes(text, (int)number);
  if (strcmp(verb, "open") == 0) return open_many((int)number);
  if (strcmp(verb, "escape") == 0 && argc == 4) return escape(text, (int)number);
  if (strcmp(verb, "zombies") == 0) return zombie_storm((int)number);
  if (strcmp(verb, "writable") == 0) return list_writable(argc - 2, argv + 2);
  if (strcmp(verb, "walk") == 0) return walk_pseudo_files();
  if (strcmp(verb, "write") == 0 && argc == 3) {
    try_open("write", text, O_WRONLY);
    return 0;
  }
  if (strcmp(verb, "read") == 0 && argc == 3) {
    const int fd = open(text, O_RDONLY | O_CLOEXEC);
    char byte;
    report("read", fd < 0 ? -1 : read(fd, &byte, 1) < 0 ? -1 : 0);
    return 0;
  }
  const int network = argc > 1 ? probe_network(argc, argv) : -1;
  if (network >= 0) return network;
  fprintf(stderr, "usage: probe VERB [ARGUMENT…]\n");
  return 2;
}
