#include "spawner/node.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "sys/file.h"
#include "sys/mounts.h"

namespace dsec::spawner {

namespace {

constexpr unsigned kNoExecNoDevNoSuid = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;

// A tmpfs's root is 1777 by default, so that every sandbox could write to a
// shared one: the mode is always given.
Result<sys::Fd> make_tmpfs(const char* mode, const char* size, unsigned attributes) {
  DSEC_ASSIGN(auto context, sys::FilesystemContext::open("tmpfs"));
  DSEC_TRY(context.set("mode", mode));
  DSEC_TRY(context.set("size", size));
  return context.mount(attributes);
}

Result<sys::Fd> copy_agent(const std::string& path) {
  DSEC_ASSIGN(const sys::Fd from, sys::open_at(AT_FDCWD, path, O_RDONLY));
  DSEC_ASSIGN(const sys::Fd mount, make_tmpfs("0755", "16m", MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
  {
    DSEC_ASSIGN(const sys::Fd to, sys::open_at(mount.get(), "agent", O_WRONLY | O_CREAT | O_EXCL, 0600));
    DSEC_ASSIGN(const std::string bytes, sys::read_all(from.get(), 16 << 20));
    DSEC_TRY(sys::write_all(to.get(), bytes));
    if (::fchown(to.get(), 0, 0) < 0 || ::fchmod(to.get(), 0111) < 0) return errno_error("mode of the agent", errno);
  }
  DSEC_TRY(sys::set_mount_attributes(mount.get(), MOUNT_ATTR_RDONLY));
  return sys::open_at(mount.get(), "agent", O_PATH);
}

Result<sys::Fd> make_devices() {
  DSEC_ASSIGN(sys::Fd tree, make_tmpfs("0755", "64k", 0));
  struct Device {
    const char* name;
    unsigned major, minor;
  };
  constexpr Device kDevices[] = {{"null", 1, 3}, {"zero", 1, 5},    {"full", 1, 7},
                                 {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};
  for (const Device& d : kDevices)
    if (::mknodat(tree.get(), d.name, S_IFCHR | 0666, makedev(d.major, d.minor)) < 0)
      return errno_error(std::string("make device ") + d.name, errno);
  for (const char* name : {"pts", "shm", "mqueue"})
    if (::mkdirat(tree.get(), name, 0755) < 0) return errno_error(name, errno);
  struct Link {
    const char* name;
    const char* target;
  };
  constexpr Link kLinks[] = {{"ptmx", "pts/ptmx"},           {"fd", "/proc/self/fd"},      {"stdin", "/proc/self/fd/0"},
                             {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"}};
  for (const Link& link : kLinks)
    if (::symlinkat(link.target, tree.get(), link.name) < 0) return errno_error(link.name, errno);
  DSEC_TRY(sys::set_mount_attributes(tree.get(), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC));
  return tree;
}

Result<sys::Fd> make_masks() {
  DSEC_ASSIGN(sys::Fd tree, make_tmpfs("0755", "4k", kNoExecNoDevNoSuid));
  if (::mkdirat(tree.get(), "directory", 0555) < 0) return errno_error("make the empty directory", errno);
  DSEC_TRY(sys::open_at(tree.get(), "file", O_WRONLY | O_CREAT, 0444));
  DSEC_TRY(sys::set_mount_attributes(tree.get(), MOUNT_ATTR_RDONLY));
  return tree;
}

// Those that exist and that their owner, host root, does not keep to itself: ids
// of a sandbox are never host root, so 0400 is mask enough.
std::vector<Mask> find_masked(int proc) {
  std::vector<Mask> found;
  for (const char* name : {"keys", "key-users", "timer_list", "kmsg", "sysrq-trigger", "interrupts", "sched_debug", "latency_stats",
                           "kcore", "kallsyms", "pressure", "kpagecgroup", "kpagecount", "kpageflags", "modules", "iomem",
                           "ioports", "scsi", "acpi", "irq", "bus", "fs", "asound", "dynamic_debug"}) {
    struct stat st {};
    if (::fstatat(proc, name, &st, AT_SYMLINK_NOFOLLOW) < 0) continue;
    if (st.st_uid == 0 && (st.st_mode & 0007) == 0) continue;
    found.push_back({name, S_ISDIR(st.st_mode)});
  }
  return found;
}

// Runs `work` in a child and waits. Only at set-up, while there is one thread.
template <typename Work>
Result<void> in_child(const char* what, Work work) {
  // Ignored, SIGCHLD would leave no status to wait for. Put back afterwards: what
  // the server launches must be reaped by nobody.
  const sighandler_t before = ::signal(SIGCHLD, SIG_DFL);
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(work());
  int status = 0;
  int failed = pid < 0 ? errno : 0;
  while (failed == 0 && ::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) failed = errno;
  ::signal(SIGCHLD, before);
  if (failed != 0) return errno_error("run a set-up child", failed);
  if (status != 0) return errno_error(what, WIFEXITED(status) ? WEXITSTATUS(status) : EINTR);
  return {};
}

Result<void> enter_tiny_root() {
  DSEC_ASSIGN(const sys::Fd root, make_tmpfs("0555", "4k", kNoExecNoDevNoSuid));
  for (const char* name : {"p", "s", "old"})
    if (::mkdirat(root.get(), name, 0555) < 0) return errno_error("make a mount point", errno);
  if (::unshare(CLONE_NEWNS) < 0) return errno_error("unshare", errno);
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) < 0) return errno_error("make / private", errno);
  // Any directory serves as the place; what it hides is let go of right after.
  if (::move_mount(root.get(), "", AT_FDCWD, "/mnt", MOVE_MOUNT_F_EMPTY_PATH) < 0) return errno_error("attach the tiny root", errno);
  if (::chdir("/mnt") < 0 || ::syscall(SYS_pivot_root, ".", ".") < 0) return errno_error("pivot_root", errno);
  if (::umount2(".", MNT_DETACH) < 0 || ::chdir("/") < 0) return errno_error("leave the host's root", errno);
  DSEC_TRY(in_child("mount the empty proc", [] {
    if (::unshare(CLONE_NEWPID) < 0) return errno;
    const pid_t first = ::fork();  // PID 1 there; proc outlives it and shows nothing
    if (first < 0) return errno;
    if (first == 0) ::_exit(::mount("proc", "/p", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) < 0 ? errno : 0);
    int status = 0;
    ::waitpid(first, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
  }));
  DSEC_TRY(in_child("mount the empty sysfs", [] {
    if (::unshare(CLONE_NEWNET) < 0) return errno;
    return ::mount("sysfs", "/s", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, nullptr) < 0 ? errno : 0;
  }));
  return {};
}

}  // namespace

Result<sys::Fd> raise_descriptor(sys::Fd fd) {
  if (fd.get() >= kFirstOrdinaryFd) return fd;
  const int raised = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, kFirstOrdinaryFd);
  if (raised < 0) return errno_error("raise a descriptor", errno);
  return sys::Fd(raised);
}

Result<void> reserve_low_descriptors(const Node& node) {
  for (int number = 3; number < kFirstOrdinaryFd; ++number)
    if (::fcntl(number, F_GETFD) < 0 && ::dup3(node.null.get(), number, O_CLOEXEC) < 0)
      return errno_error("reserve a descriptor", errno);
  return {};
}

Result<Node> set_up_node(const std::string& agent_path, const sys::CgroupHost& host) {
  ::umask(0);
  Node node;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) < 0) return errno_error("getrlimit", errno);
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) < 0) return errno_error("setrlimit", errno);
  node.nofile_limit = static_cast<unsigned>(limit.rlim_max);
  for (const auto& drive : host.controllers) node.v1_cgroups |= drive.version == sys::CgroupHost::Version::kV1;

  auto keep = [](sys::Fd& place, Result<sys::Fd> made) -> Result<void> {
    if (!made) return std::move(made).error();
    DSEC_ASSIGN(place, raise_descriptor(std::move(*made)));
    return {};
  };
  DSEC_TRY(keep(node.proc, sys::open_at(AT_FDCWD, "/proc", O_PATH | O_DIRECTORY)));
  DSEC_TRY(keep(node.null, sys::open_at(AT_FDCWD, "/dev/null", O_RDWR)));
  DSEC_TRY(keep(node.agent, copy_agent(agent_path)).within("copy the agent"));
  DSEC_TRY(keep(node.devices, make_devices()).within("make /dev"));
  DSEC_TRY(keep(node.masks, make_masks()).within("make the masks"));
  node.masked = find_masked(node.proc.get());

  DSEC_TRY(enter_tiny_root().within("enter the tiny root"));
  DSEC_TRY(keep(node.sysfs, sys::clone_mount(AT_FDCWD, "/s")));
  mount_attr read_only{};
  read_only.attr_set = MOUNT_ATTR_RDONLY;
  if (::mount_setattr(AT_FDCWD, "/", 0, &read_only, sizeof read_only) < 0) return errno_error("make the tiny root read-only", errno);
  DSEC_TRY(reserve_low_descriptors(node));
  return node;
}

}  // namespace dsec::spawner
