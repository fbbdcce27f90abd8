#include "cli/host_checks.h"

#include <fcntl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>

#include "base/errno_text.h"
#include "cli/units_text.h"
#include "sys/cgroup.h"
#include "sys/file.h"
#include "sys/swap.h"

namespace dsec::cli {
namespace {

// errno of `action` in a child process, so that what it changes goes with it; 0 = it worked
int try_in_child(const std::function<int()>& action) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(action() & 0xff);
  int status = 0;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
}

bool has_filesystem(const std::string& name) {
  const auto text = sys::read_file("/proc/filesystems");
  return text.ok() && ("\n" + *text).find("\t" + name + "\n") != std::string::npos;
}

int fsopen_errno(const char* type) {
  const long fd = ::syscall(SYS_fsopen, type, 1 /* FSOPEN_CLOEXEC */);
  if (fd < 0) return errno;
  ::close(static_cast<int>(fd));
  return 0;
}

bool in_path(const std::string& program) {
  for (const char* directory : {"/usr/local/sbin/", "/usr/local/bin/", "/usr/sbin/", "/usr/bin/", "/sbin/", "/bin/"})
    if (::access((directory + program).c_str(), X_OK) == 0) return true;
  return false;
}

HostCheck check_kernel() {
  utsname host{};
  ::uname(&host);
  const int version = kernel_version_number(host.release);
  HostCheck out{"kernel", CheckOutcome::kGood, std::string("Linux ") + host.release, ""};
  if (version < 6015) {
    out.outcome = CheckOutcome::kBad;
    out.remedy = "Linux 6.15 or later is needed: older ones do not clone detached mounts, nor mount on them";
  }
  return out;
}

HostCheck check_root() {
  if (::geteuid() == 0) return {"root", CheckOutcome::kGood, "yes", ""};
  return {"root", CheckOutcome::kBad, "uid " + std::to_string(::geteuid()), "`dsec serve` needs root on the host; ask again with sudo"};
}

HostCheck check_filesystem(const char* name, const char* why) {
  const int failure = fsopen_errno(name);
  if (failure == 0 || has_filesystem(name)) return {name, CheckOutcome::kGood, "available", ""};
  return {name, CheckOutcome::kBad, errno_text(failure), std::string("modprobe ") + name + " (" + why + ")"};
}

HostCheck check_directio() {
  // The option exists since 6.12 for file-backed mounts; fsconfig refuses an unknown key.
  const long fd = ::syscall(SYS_fsopen, "erofs", 1);
  if (fd < 0) return {"erofs directio", CheckOutcome::kWarning, errno_text(errno), "layers are cached twice without it"};
  const long set = ::syscall(SYS_fsconfig, fd, 0 /* FSCONFIG_SET_FLAG */, "directio", nullptr, 0);
  const int failure = set == 0 ? 0 : errno;
  ::close(static_cast<int>(fd));
  if (failure == 0) return {"erofs directio", CheckOutcome::kGood, "available", ""};
  return {"erofs directio", CheckOutcome::kWarning, errno_text(failure), "layers are cached twice without it (Linux 6.14)"};
}

HostCheck check_namespaces() {
  const int failure = try_in_child([] {
    return ::unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP) == 0 ? 0 : errno;
  });
  if (failure == 0) return {"namespaces", CheckOutcome::kGood, "user pid mount net ipc uts cgroup", ""};
  return {"namespaces", CheckOutcome::kBad, errno_text(failure),
          "sysctl user.max_user_namespaces must not be 0, nor kernel.unprivileged_userns_clone or kernel.apparmor_restrict_unprivileged_userns forbid them"};
}

HostCheck check_idmap() {
  const int failure = try_in_child([] {
    // Asked of a detached clone of / with a bad descriptor: EBADF means that the kernel knows idmapped mounts.
    struct {
      std::uint64_t set, clear, propagation, userns;
    } attributes = {0x00100000 /* MOUNT_ATTR_IDMAP */, 0, 0, static_cast<std::uint64_t>(-1)};
    const long result = ::syscall(SYS_mount_setattr, AT_FDCWD, "/", 0, &attributes, sizeof attributes);
    return result == 0 ? 0 : errno;
  });
  if (failure == 0 || failure == EBADF || failure == EINVAL) return {"idmapped mounts", CheckOutcome::kGood, "available", ""};
  return {"idmapped mounts", failure == EPERM ? CheckOutcome::kWarning : CheckOutcome::kBad, errno_text(failure), "needs root and Linux 5.12"};
}

HostCheck check_seccomp() {
  unsigned action = SECCOMP_RET_KILL_PROCESS;
  if (::syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0) return {"seccomp", CheckOutcome::kGood, "available", ""};
  return {"seccomp", CheckOutcome::kBad, errno_text(errno), "the kernel needs CONFIG_SECCOMP_FILTER"};
}

HostCheck check_cgroups() {
  const auto mounts = sys::read_file("/proc/self/mountinfo", 4 << 20);
  const std::string text = mounts.ok() ? *mounts : "";
  const bool v2 = text.find(" - cgroup2 ") != std::string::npos;
  const bool v1 = text.find(" - cgroup cgroup") != std::string::npos || text.find(" - cgroup ") != std::string::npos;
  if (!v2 && !v1) return {"cgroups", CheckOutcome::kBad, "none mounted", "mount -t cgroup2 none /sys/fs/cgroup"};
  if (!v2) return {"cgroups", CheckOutcome::kBad, "v1 only", "the unified hierarchy must be mounted too: mount -t cgroup2 none /sys/fs/cgroup/unified"};
  const auto controllers = sys::read_file("/sys/fs/cgroup/cgroup.controllers");
  std::string found = v1 ? "v1 controllers with a v2 tree (hybrid)" : "v2";
  if (controllers.ok() && !controllers->empty()) found += ": " + controllers->substr(0, controllers->size() - 1);
  return {"cgroups", CheckOutcome::kGood, found, ""};
}

HostCheck check_leftovers() {
  std::string empty, populated;
  for (const sys::AbandonedCgroups& tree : sys::CgroupTree::abandoned(sys::CgroupHost::detect()))
    (tree.populated ? populated : empty) += " " + tree.name;
  if (empty.empty() && populated.empty()) return {"left-overs", CheckOutcome::kGood, "none", ""};
  std::string found, remedy;
  if (!populated.empty()) {
    found = "sandboxes that no server has, in cgroups" + populated;
    remedy = "start dsec serve on their data directory: it takes them back";
  }
  if (!empty.empty()) {
    found += (found.empty() ? "" : "; ") + std::string("cgroups of servers that are gone:") + empty;
    remedy += (remedy.empty() ? "" : "; ") + std::string("the next start of any dsec serve removes the empty ones");
  }
  return {"left-overs", CheckOutcome::kWarning, found, remedy};
}

HostCheck check_fuse() {
  if (::access("/dev/fuse", R_OK | W_OK) == 0 && fsopen_errno("fuse") == 0)
    return {"fuse", CheckOutcome::kGood, "available: layers of a shared store are read on demand", ""};
  return {"fuse", CheckOutcome::kWarning, "not available", "layers of a shared store are copied whole before their first use"};
}

HostCheck check_btrfs() {
  if (fsopen_errno("btrfs") == 0 && in_path("mkfs.btrfs"))
    return {"btrfs", CheckOutcome::kGood, "available: writable layers with a quota each", ""};
  return {"btrfs", CheckOutcome::kWarning, "not available", "apt-get install btrfs-progs; without it writable layers are in memory (tmpfs)"};
}

HostCheck check_kvm() {
  if (::access("/dev/kvm", R_OK | W_OK) == 0) return {"kvm", CheckOutcome::kGood, "/dev/kvm", ""};
  return {"kvm", CheckOutcome::kWarning, errno_text(errno), "only microVMs and full VMs want it"};
}

HostCheck check_files() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const std::string found = std::to_string(limit.rlim_max) + " open files";
  if (limit.rlim_max >= 65536) return {"limits", CheckOutcome::kGood, found, ""};
  return {"limits", CheckOutcome::kWarning, found, "raise the hard limit to 65536 or more (ulimit -Hn, LimitNOFILE=) for many sandboxes"};
}

HostCheck check_pids() {
  const auto text = sys::read_file("/proc/sys/kernel/pid_max");
  const long most = text.ok() ? std::atol(text->c_str()) : 0;
  if (most >= 65536) return {"pid_max", CheckOutcome::kGood, std::to_string(most), ""};
  return {"pid_max", CheckOutcome::kWarning, std::to_string(most), "sysctl -w kernel.pid_max=4194304"};
}

HostCheck check_memory() {
  const auto text = sys::read_file("/proc/meminfo");
  const std::size_t at = text.ok() ? text->find("MemAvailable:") : std::string::npos;
  const std::uint64_t kib = at == std::string::npos ? 0 : std::strtoull(text->c_str() + at + 13, nullptr, 10);
  const std::string found = bytes_text(kib << 10) + " available, " + std::to_string(::sysconf(_SC_NPROCESSORS_ONLN)) + " CPUs";
  if (kib > (1 << 20)) return {"memory", CheckOutcome::kGood, found, ""};
  return {"memory", CheckOutcome::kWarning, found, "less than 1 GiB is left"};
}

HostCheck check_swap() {
  std::uint64_t bytes = 0, used = 0;
  for (const sys::SwapArea& area : sys::swap_areas()) {
    bytes += area.bytes;
    used += area.used_bytes;
  }
  if (bytes > 0) return {"swap", CheckOutcome::kGood, bytes_text(bytes) + ", " + bytes_text(used) + " in use", ""};
  return {"swap", CheckOutcome::kWarning, "none: of a paused sandbox only page cache can be given back",
          "dsec serve --swap-zram-mb N, --swap-file-mb N, or swap of the host"};
}

HostCheck check_smt() {
  const auto active = sys::read_file("/sys/devices/system/cpu/smt/active");
  if (!active.ok() || !active->starts_with("1")) return {"smt", CheckOutcome::kGood, "off, or not there: no two sandboxes share a core at a time", ""};
  return {"smt", CheckOutcome::kWarning, "on: a batch sandbox may run beside a latency one on the same core, and see what its caches tell",
          "switch SMT off where sandboxes of strangers run: this version uses no core scheduling"};
}

HostCheck check_disk() {
  std::string path = "/var/lib/dsec";
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0) path = "/var/lib";
  if (::statvfs(path.c_str(), &info) != 0) return {"disk", CheckOutcome::kWarning, errno_text(errno), ""};
  const std::uint64_t free_bytes = static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
  const std::string found = bytes_text(free_bytes) + " free below " + path;
  if (free_bytes > (5ULL << 30)) return {"disk", CheckOutcome::kGood, found, ""};
  return {"disk", CheckOutcome::kWarning, found, "a base image and its sandboxes want some 5 GiB; --data-dir names another place"};
}

HostCheck check_subuids() {
  const auto text = sys::read_file("/etc/subuid");
  if (!text.ok() || text->empty()) return {"subuids", CheckOutcome::kGood, "no /etc/subuid: dsec's own uid ranges are free", ""};
  return {"subuids", CheckOutcome::kGood, "/etc/subuid has " + std::to_string(std::count(text->begin(), text->end(), '\n')) + " ranges", ""};
}

HostCheck check_program(const char* program, const char* package, const char* why, CheckOutcome without) {
  if (in_path(program)) return {program, CheckOutcome::kGood, "installed", ""};
  return {program, without, "missing", std::string("apt-get install ") + package + " (" + why + ")"};
}

}  // namespace

int kernel_version_number(const std::string& release) {
  char* end = nullptr;
  const long first = std::strtol(release.c_str(), &end, 10);
  if (end == release.c_str() || *end != '.') return 0;
  return static_cast<int>(first * 1000 + std::strtol(end + 1, nullptr, 10));
}

std::vector<HostCheck> check_host() {
  return {
      check_kernel(),
      check_root(),
      check_namespaces(),
      check_filesystem("erofs", "layers are EROFS images"),
      check_directio(),
      check_filesystem("overlay", "sandboxes are overlays of layers"),
      check_idmap(),
      check_cgroups(),
      check_leftovers(),
      check_seccomp(),
      check_btrfs(),
      check_fuse(),
      check_kvm(),
      check_files(),
      check_pids(),
      check_memory(),
      check_swap(),
      check_smt(),
      check_disk(),
      check_subuids(),
      check_program("mmdebstrap", "mmdebstrap uidmap", "builds debian: images", CheckOutcome::kWarning),
      check_program("skopeo", "skopeo", "fetches docker:// images", CheckOutcome::kWarning),
  };
}

}  // namespace dsec::cli
