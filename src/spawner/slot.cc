#include "spawner/slot.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/fail_point.h"
#include "protocol/agent_descriptors.h"
#include "sys/file.h"
#include "sys/mounts.h"

namespace dsec::spawner {

namespace {

using protocol::kAgentUid;
using protocol::kPayloadIds;

// Shared with two children that run in this memory: the outer child stands in
// the outer namespace, the inner one below it. Each waits at its gate until its
// map is written; a map can only be written by a process of the parent namespace.
struct Making {
  int proc = -1;
  const sys::ChildStack* inner_stack = nullptr;
  const sys::SlotCgroups* cgroups = nullptr;
  std::atomic<int> outer_gate{0};
  std::atomic<int> inner_gate{0};
  int outer_fd = -1;
  int inner_fd = -1;
  int network_fd = -1;
  int cgroup_fd = -1;
  const char* failed = nullptr;  // a literal
  int error = 0;
};

constexpr int kOpen = 1, kAbandoned = 2;
constexpr int kMapAttempts = 100;
constexpr int kSlotsOfOneProc = 32;

void open_gate(std::atomic<int>& gate, int value) {
  gate.store(value, std::memory_order_release);
  ::syscall(SYS_futex, &gate, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

bool wait_gate(std::atomic<int>& gate) {
  for (int rounds = 0; rounds < 8; ++rounds) {
    if (const int value = gate.load(std::memory_order_acquire); value != 0) return value == kOpen;
    const timespec second{1, 0};
    ::syscall(SYS_futex, &gate, FUTEX_WAIT, 0, &second, nullptr, 0);
  }
  return false;
}

// What follows runs in the children: system calls, no allocation.

int fail(Making& m, const char* what, int error) {
  if (!m.failed) {
    m.failed = what;
    m.error = error;
  }
  return 1;
}

int write_proc(int proc, const char* path, const char* text) {
  const int fd = ::openat(proc, path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  const ssize_t n = ::write(fd, text, std::strlen(text));
  const int error = n < 0 ? errno : 0;
  ::close(fd);
  return error;
}

int loopback_up() {
  const int s = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (s < 0) return errno;
  ifreq request{};
  std::memcpy(request.ifr_name, "lo", 3);
  request.ifr_flags = IFF_UP;
  const int error = ::ioctl(s, SIOCSIFFLAGS, &request) < 0 ? errno : 0;
  ::close(s);
  return error;
}

int inner_main(void* argument) {
  auto& m = *static_cast<Making*>(argument);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a slot with a process in it would pass for one in use
  if (!wait_gate(m.inner_gate)) return 1;
  // Not even clone3, whose flags no filter sees, makes a namespace below here:
  // raising these needs CAP_SYS_RESOURCE, which no payload has.
  for (const char* limit :
       {"sys/user/max_user_namespaces", "sys/user/max_mnt_namespaces", "sys/user/max_pid_namespaces",
        "sys/user/max_net_namespaces", "sys/user/max_ipc_namespaces", "sys/user/max_uts_namespaces",
        "sys/user/max_cgroup_namespaces", "sys/user/max_time_namespaces"})
    if (const int error = write_proc(m.proc, limit, "0")) return fail(m, limit, error);
  m.inner_fd = ::openat(m.proc, "self/ns/user", O_RDONLY | O_CLOEXEC);
  if (m.inner_fd < 0) return fail(m, "open the inner user namespace", errno);
  m.cgroup_fd = ::openat(m.proc, "self/ns/cgroup", O_RDONLY | O_CLOEXEC);
  if (m.cgroup_fd < 0) return fail(m, "open the cgroup namespace", errno);
  return 0;
}

int outer_main(void* argument) {
  auto& m = *static_cast<Making*>(argument);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (const int error = loopback_up()) return fail(m, "bring lo up", error);
  if (!wait_gate(m.outer_gate)) return 1;
  if (::syscall(SYS_setresgid, kAgentUid, kAgentUid, kAgentUid) < 0 || ::syscall(SYS_setresuid, kAgentUid, kAgentUid, kAgentUid) < 0)
    return fail(m, "take an id of the outer namespace", errno);
  // Changing ids made this shared address space undumpable, and with that gave
  // the inner child's map files to host root, where this process cannot write.
  ::prctl(PR_SET_DUMPABLE, 1);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  struct Setting {
    const char* path;
    const char* value;
  };
  // Payloads have no capability over this namespace, and bind low ports and ping
  // all the same. No connection outlives its sockets, so that the namespace can
  // serve another sandbox.
  constexpr Setting kSettings[] = {{"sys/net/ipv4/ip_unprivileged_port_start", "0"},
                                   {"sys/net/ipv4/ping_group_range", "0 65535"},
                                   {"sys/net/ipv4/tcp_max_tw_buckets", "0"},
                                   {"sys/net/ipv4/tcp_no_metrics_save", "1"}};
  for (const Setting& s : kSettings)
    if (const int error = write_proc(m.proc, s.path, s.value)) return fail(m, s.path, error);
  m.outer_fd = ::openat(m.proc, "self/ns/user", O_RDONLY | O_CLOEXEC);
  m.network_fd = ::openat(m.proc, "self/ns/net", O_RDONLY | O_CLOEXEC);
  if (m.outer_fd < 0 || m.network_fd < 0) return fail(m, "open the outer namespaces", errno);

  // A cgroup namespace's root is where its maker stands. The v2 cgroup came with the birth.
  for (const sys::Fd& tasks : m.cgroups->v1_tasks)
    if (tasks && ::write(tasks.get(), "0", 1) < 0) return fail(m, "enter a cgroup", errno);
  clone_args args{};
  args.flags = CLONE_VM | CLONE_FILES | CLONE_NEWUSER | CLONE_NEWCGROUP;
  args.exit_signal = SIGCHLD;
  const long pid = sys::clone_call(&args, *m.inner_stack, inner_main, argument);
  if (pid < 0) return fail(m, "clone into the inner user namespace", errno);
  char path[64];
  char map[64];
  std::snprintf(map, sizeof map, "0 0 %u", kPayloadIds);
  int error = 0;
  for (const char* name : {"gid_map", "uid_map"}) {
    std::snprintf(path, sizeof path, "%ld/%s", pid, name);
    if (error == 0) error = write_proc(m.proc, path, map);
    // Another slot in the making, which shares this address space, may have
    // changed its ids since: then the files are host root's again.
    for (int again = 0; (error == EACCES || error == EPERM) && again < kMapAttempts; ++again) {
      ::prctl(PR_SET_DUMPABLE, 1);
      error = write_proc(m.proc, path, map);
    }
  }
  open_gate(m.inner_gate, error == 0 ? kOpen : kAbandoned);
  if (error != 0) fail(m, "map the inner user namespace", error);
  // SIGCHLD is ignored here: this returns when the child is gone.
  while (::waitpid(static_cast<pid_t>(pid), nullptr, __WALL) < 0 && errno == EINTR) {
  }
  return 0;
}

}  // namespace

std::optional<std::uint32_t> slot_number(const std::string& name) {
  if (name.size() < 2 || name[0] != 's') return std::nullopt;
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(name.data() + 1, name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size() || number >= kMaxSlots) return std::nullopt;
  return number;
}

Result<void> NamespaceMaker::renew_settings() {
  if (--settings_left_ > 0) return {};
  DSEC_ASSIGN(auto context, sys::FilesystemContext::open("proc"));
  DSEC_ASSIGN(settings_, context.mount(MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC));
  settings_left_ = kSlotsOfOneProc;
  return {};
}

Result<Namespaces> NamespaceMaker::make(std::uint32_t number, const sys::SlotCgroups& cgroups) {
  DSEC_TRY(fail_point("spawner.slot.namespaces"));
  DSEC_TRY(renew_settings().within("make a proc for settings"));
  Making making;
  making.proc = settings_.get();
  making.inner_stack = &inner_stack_;
  making.cgroups = &cgroups;
  clone_args args{};
  args.flags = CLONE_VM | CLONE_FILES | CLONE_NEWUSER | CLONE_NEWNET | CLONE_INTO_CGROUP;
  args.cgroup = static_cast<std::uint64_t>(cgroups.payload.get());
  args.exit_signal = SIGCHLD;
  const long pid = sys::clone_call(&args, outer_stack_, outer_main, &making);
  if (pid < 0) return errno_error("clone into the outer user namespace", errno);
  char map[96];
  int error = 0;
  std::snprintf(map, sizeof map, "0 %u %u\n%u %u 1", payload_id(number), kPayloadIds, kAgentUid, agent_id(number));
  for (const char* name : {"gid_map", "uid_map"})
    if (auto written = sys::write_at(node_.proc.get(), std::to_string(pid) + "/" + name, map); !written.ok() && error == 0)
      error = written.error().error_number();
  open_gate(making.outer_gate, error == 0 ? kOpen : kAbandoned);
  while (::waitpid(static_cast<pid_t>(pid), nullptr, __WALL) < 0 && errno == EINTR) {
  }
  Namespaces made{sys::Fd(making.outer_fd), sys::Fd(making.inner_fd), sys::Fd(making.network_fd), sys::Fd(making.cgroup_fd)};
  if (error != 0) return errno_error("map the outer user namespace", error);
  if (making.failed) return errno_error(making.failed, making.error);
  if (!made.outer || !made.inner || !made.network || !made.cgroup) return Error(ErrorCode::kInternal, "the namespaces' maker was killed");
  return made;
}

Result<bool> NamespaceMaker::unused(const Namespaces& namespaces) {
  if (!home_) home_ = sys::Fd(::openat(node_.proc.get(), "thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  if (!home_) return errno_error("open the own network namespace", errno);
  if (::setns(namespaces.network.get(), CLONE_NEWNET) < 0) return errno_error("enter a network namespace", errno);
  std::string text;
  for (const char* path : {"thread-self/net/sockstat", "thread-self/net/sockstat6"})
    if (auto part = sys::read_file_at(node_.proc.get(), path)) text += *part;
  DSEC_CHECK(::setns(home_.get(), CLONE_NEWNET) == 0);
  // "TCP: inuse 0 orphan 12 …": orphan counts the whole host, inuse this namespace.
  for (const char* sign : {"sockets: used 0\n", "TCP: inuse 0 ", " tw 0 ", "UDP: inuse 0 ", "TCP6: inuse 0\n", "UDP6: inuse 0\n"})
    if (text.find(sign) == std::string::npos) return false;
  return true;
}

}  // namespace dsec::spawner
