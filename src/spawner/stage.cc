#include "spawner/stage.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/fail_point.h"
#include "protocol/agent_descriptors.h"
#include "sys/mounts.h"

namespace dsec::spawner {

namespace {

int fail(Stage& s, const char* what) {
  s.error = errno ? errno : EIO;
  s.what = what;
  return 1;
}

// -1 with EIO when the test asked for it.
int passes(const char* name) {
  if (fail_point(name).ok()) return 0;
  errno = EIO;
  return -1;
}

int keep(Stage& s, int fd) {
  if (fd >= 0 && s.opened_count < static_cast<int>(s.opened.size())) s.opened[static_cast<std::size_t>(s.opened_count++)] = fd;
  return fd;
}

int place(const Stage& s, Place p) { return s.block + static_cast<int>(p); }

// A detached mount of a filesystem of the namespaces that init stands in.
int make_mount(Stage& s, const char* type, unsigned attributes, const char* const (*options)[2], int count) {
  const int context = keep(s, ::fsopen(type, FSOPEN_CLOEXEC));
  if (context < 0) return -1;
  for (int i = 0; i < count; ++i)
    if (::fsconfig(context, FSCONFIG_SET_STRING, options[i][0], options[i][1], 0) < 0) return -1;
  if (::fsconfig(context, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) < 0) return -1;
  return ::fsmount(context, FSMOUNT_CLOEXEC, attributes);
}

// Root inside owns what belongs to its pid namespace. aether takes process numbers
// from it too, and must not be left without. Done by init: the file that a process
// finds at this name is that of its own pid namespace.
int keep_read_only(Stage& s, const char* name) {
  const int cover = keep(s, ::open_tree(s.proc, name, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  mount_attr read_only{};
  read_only.attr_set = MOUNT_ATTR_RDONLY;
  if (cover < 0 || ::mount_setattr(cover, "", AT_EMPTY_PATH, &read_only, sizeof read_only) < 0 ||
      ::move_mount(cover, "", s.proc, name, MOVE_MOUNT_F_EMPTY_PATH) < 0)
    return fail(s, "keep a path of /proc read-only");
  return 0;
}

int make_mounts(Stage& s) {
  constexpr unsigned kPlain = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  if (passes("spawner.init.proc") < 0) return fail(s, "make proc");
  s.proc = make_mount(s, "proc", kPlain, nullptr, 0);
  if (s.proc < 0) return fail(s, "make proc");
  if (keep_read_only(s, "sys/kernel/pid_max") != 0) return 1;
  constexpr const char* kTerminals[][2] = {{"ptmxmode", "0666"}, {"mode", "620"}, {"gid", "5"}, {"max", "256"}};
  if (passes("spawner.init.terminals") < 0) return fail(s, "make devpts");
  s.terminals = make_mount(s, "devpts", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, kTerminals, 4);
  if (s.terminals < 0) return fail(s, "make devpts");
  s.queues = make_mount(s, "mqueue", kPlain, nullptr, 0);
  if (s.queues < 0) return fail(s, "make mqueue");
  return 0;
}

int set_limits(const Stage& s) {
  const rlimit core{0, 0};
  const rlim_t most = s.node->nofile_limit;
  const rlimit files{most < 1024 ? most : 1024, most};
  const rlimit locked{8 << 20, 8 << 20};
  if (::syscall(SYS_prlimit64, 0, RLIMIT_CORE, &core, nullptr) < 0) return -1;
  if (::syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &files, nullptr) < 0) return -1;
  if (::syscall(SYS_prlimit64, 0, RLIMIT_MEMLOCK, &locked, nullptr) < 0) return -1;
  // The maker ignores SIGCHLD and may block signals.
  struct KernelAction {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)();
    unsigned long mask;
  } action{SIG_DFL, 0, nullptr, 0};
  for (int signal : {SIGCHLD, SIGPIPE})
    if (::syscall(SYS_rt_sigaction, signal, &action, nullptr, sizeof action.mask) < 0) return -1;
  const unsigned long none = 0;
  return static_cast<int>(::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, nullptr, sizeof none));
}

// A descriptor table of its own with only what aether is to have. The shared
// one, with thousands of descriptors, is never copied.
int set_descriptors(const Stage& s) {
  if (::syscall(SYS_close_range, kFirstOrdinaryFd, ~0u, CLOSE_RANGE_UNSHARE) < 0) return -1;
  for (int fd = 0; fd < 3; ++fd)
    if (::dup3(place(s, Place::kNull), fd, 0) < 0) return -1;
  struct Move {
    Place from;
    int to;
  };
  constexpr Move kMoves[] = {{Place::kControl, protocol::kAgentListenFd},     {Place::kInner, protocol::kInnerUserNamespaceFd},
                             {Place::kMemoryTasks, protocol::kV1MemoryTasksFd}, {Place::kCpuTasks, protocol::kV1CpuTasksFd},
                             {Place::kPidsTasks, protocol::kV1PidsTasksFd},   {Place::kPayload, protocol::kPayloadCgroupFd},
                             {Place::kAgent, protocol::kFirstFreeAgentFd}};
  // They cross the exec into aether, which closes the door behind itself; its own file does not.
  for (const Move& move : kMoves)
    if (::dup3(place(s, move.from), move.to, move.from == Place::kAgent ? O_CLOEXEC : 0) < 0) return -1;
  for (std::size_t i = 0; i < s.v1.size(); ++i)
    if (!s.v1[i]) ::close(protocol::kV1TasksFds[i]);
  return static_cast<int>(::syscall(SYS_close_range, protocol::kFirstFreeAgentFd + 1, ~0u, 0));
}

// By raw calls: libc's would change every thread of the spawner. Host root is
// not mapped in the outer namespace, so leaving it keeps the capabilities.
int take_identity() {
  const std::uint32_t id = protocol::kAgentUid;
  if (::syscall(SYS_setgroups, 0, nullptr) < 0 || ::syscall(SYS_setresgid, id, id, id) < 0 || ::syscall(SYS_setresuid, id, id, id) < 0)
    return -1;
  std::uint64_t mask = 0;
  for (int capability : protocol::kAgentCapabilities) mask |= std::uint64_t{1} << capability;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  for (int half = 0; half < 2; ++half) {
    const auto bits = static_cast<std::uint32_t>(mask >> (32 * half));
    data[half] = {bits, bits, bits};
  }
  if (::syscall(SYS_capset, &header, data) < 0) return -1;
  for (int capability : protocol::kAgentCapabilities)
    if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0) < 0) return -1;
  return 0;
}

int init_main(void* argument) {
  auto& s = *static_cast<Stage*>(argument);
  if (make_mounts(s) != 0) return 1;
  if (passes("spawner.init.identity") < 0 || set_limits(s) < 0) return fail(s, "set limits");
  if (set_descriptors(s) < 0) return fail(s, "set descriptors");
  if (take_identity() < 0) return fail(s, "take aether's identity");
  const sock_fprog filter{s.filter_length, const_cast<sock_filter*>(s.filter)};
  if (passes("spawner.init.filter") < 0 || ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) < 0)
    return fail(s, "load the narrow filter");
  if (passes("spawner.init.exec") < 0) return fail(s, "execute the agent");
  char name[] = "aether";
  char v1[] = "DSEC_V1_CGROUPS=0";
  if (s.v1[0] || s.v1[1] || s.v1[2]) v1[sizeof v1 - 2] = '1';
  char* const argv[] = {name, nullptr};
  char* const env[] = {v1, fail_point_environment(), nullptr};
  s.executing = true;
  ::syscall(SYS_execveat, protocol::kFirstFreeAgentFd, "", argv, env, AT_EMPTY_PATH);
  s.executing = false;
  return fail(s, "execute the agent");
}

int stager_main(void* argument) {
  auto& s = *static_cast<Stage*>(argument);
  if (::setpriority(PRIO_PROCESS, 0, 0) < 0) return fail(s, "take the ordinary nice value");
  if (passes("spawner.stager.user") < 0 || ::setns(s.outer, CLONE_NEWUSER) < 0) return fail(s, "enter the user namespace");
  if (::setns(s.network, CLONE_NEWNET) < 0) return fail(s, "enter the network namespace");
  if (::setns(s.cgroup, CLONE_NEWCGROUP) < 0) return fail(s, "enter the cgroup namespace");

  clone_args args{};
  args.flags = CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_PARENT | CLONE_PIDFD | CLONE_PARENT_SETTID | CLONE_NEWNS | CLONE_NEWPID |
               CLONE_NEWIPC | CLONE_NEWUTS;
  args.pidfd = reinterpret_cast<std::uint64_t>(&s.pidfd);
  args.parent_tid = reinterpret_cast<std::uint64_t>(&s.pid);
  if (sys::clone_call(&args, *s.init_stack, init_main, argument) < 0) return fail(s, "clone init");
  return 0;
}

}  // namespace

void run_stage(Stage& stage, const sys::ChildStack& stager_stack) {
  clone_args args{};
  args.flags = CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_INTO_CGROUP;
  args.cgroup = static_cast<std::uint64_t>(stage.agent_cgroup);
  args.exit_signal = SIGCHLD;
  if (sys::clone_call(&args, stager_stack, stager_main, &stage) < 0) fail(stage, "clone the stager");
  for (int i = 0; i < stage.opened_count; ++i) ::close(stage.opened[static_cast<std::size_t>(i)]);
  stage.opened_count = 0;
}

}  // namespace dsec::spawner
