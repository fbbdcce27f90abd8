#include "image/confinement.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>

#include "image/worker_filter.h"
#include "sys/fd.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

Result<sys::Fd> clone_tree(const std::string& path, bool recursive) {
  const unsigned flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (recursive ? AT_RECURSIVE : 0);
  const int fd = static_cast<int>(::syscall(SYS_open_tree, AT_FDCWD, path.c_str(), flags));
  if (fd < 0) return errno_error("take " + path, errno);
  return sys::Fd(fd);
}

Result<void> restrict_mount(int mount, std::uint64_t attributes, unsigned flags) {
  mount_attr attr{};
  attr.attr_set = attributes;
  if (::syscall(SYS_mount_setattr, mount, "", AT_EMPTY_PATH | flags, &attr, sizeof attr) != 0) return errno_error("restrict a mount", errno);
  return {};
}

Result<void> put_mount(int mount, int root, const std::string& at) {
  if (::syscall(SYS_move_mount, mount, "", root, at.c_str(), MOVE_MOUNT_F_EMPTY_PATH) != 0) return errno_error("place /" + at, errno);
  return {};
}

Result<sys::Fd> new_filesystem(const char* type, std::initializer_list<std::pair<const char*, const char*>> options) {
  const sys::Fd context(static_cast<int>(::syscall(SYS_fsopen, type, FSOPEN_CLOEXEC)));
  if (!context) return errno_error(std::string("open filesystem type ") + type, errno);
  for (const auto& [key, value] : options) {
    if (::syscall(SYS_fsconfig, context.get(), FSCONFIG_SET_STRING, key, value, 0) != 0) return errno_error(std::string("configure ") + type, errno);
  }
  if (::syscall(SYS_fsconfig, context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) return errno_error(std::string("make a ") + type, errno);
  sys::Fd mount(static_cast<int>(::syscall(SYS_fsmount, context.get(), FSMOUNT_CLOEXEC, 0)));
  if (!mount) return errno_error(std::string("mount a ") + type, errno);
  return mount;
}

Result<void> make_directory(int root, const std::string& path, mode_t mode = 0755) {
  if (::mkdirat(root, path.c_str(), mode) != 0 && errno != EEXIST) return errno_error("make /" + path, errno);
  if (::fchmodat(root, path.c_str(), mode, 0) != 0) return errno_error("set the mode of /" + path, errno);
  return {};
}

// Shows a file or directory of the host, read-only, if it is there. A link is
// followed on the host's side, so that /etc/resolv.conf is a file here.
Result<void> show(int root, const std::string& path) {
  char* const real = ::realpath(("/" + path).c_str(), nullptr);
  if (real == nullptr) return {};
  const std::string source = real;
  ::free(real);
  struct stat st{};
  if (::stat(source.c_str(), &st) != 0) return {};
  if (S_ISDIR(st.st_mode)) {
    DSEC_TRY(make_directory(root, path));
  } else {
    DSEC_TRY([&]() -> Result<void> {
      DSEC_ASSIGN(const sys::Fd made, sys::open_at(root, path, O_WRONLY | O_CREAT, 0644));
      return {};
    }());
  }
  DSEC_ASSIGN(const sys::Fd mount, clone_tree(source, true));
  DSEC_TRY(restrict_mount(mount.get(), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, AT_RECURSIVE));
  return put_mount(mount.get(), root, path);
}

// /bin, /lib and so on: links into /usr on a merged system, directories else.
Result<void> show_program_directories(int root) {
  DSEC_TRY(show(root, "usr"));
  for (const char* name : {"bin", "sbin", "lib", "lib32", "lib64", "libx32"}) {
    char target[64];
    const ssize_t n = ::readlink((std::string("/") + name).c_str(), target, sizeof target - 1);
    if (n > 0) {
      target[n] = '\0';
      if (::symlinkat(target, root, name) != 0) return errno_error(std::string("make /") + name, errno);
    } else {
      DSEC_TRY(show(root, name));
    }
  }
  return {};
}

Result<void> show_device(int root, const std::string& name) {
  DSEC_TRY([&]() -> Result<void> {
    DSEC_ASSIGN(const sys::Fd made, sys::open_at(root, "dev/" + name, O_WRONLY | O_CREAT, 0666));
    return {};
  }());
  DSEC_ASSIGN(const sys::Fd mount, clone_tree("/dev/" + name, false));
  DSEC_TRY(restrict_mount(mount.get(), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC, 0));
  return put_mount(mount.get(), root, "dev/" + name);
}

Result<void> show_devices_and_processes(int root) {
  for (const char* name : {"null", "zero", "full", "random", "urandom", "tty"}) DSEC_TRY(show_device(root, name));
  for (const auto& [target, name] : {std::pair{"/proc/self/fd", "dev/fd"}, {"/proc/self/fd/0", "dev/stdin"}, {"/proc/self/fd/1", "dev/stdout"}, {"/proc/self/fd/2", "dev/stderr"}}) {
    if (::symlinkat(target, root, name) != 0) return errno_error(std::string("make /") + name, errno);
  }
  DSEC_ASSIGN(const sys::Fd proc, new_filesystem("proc", {}));
  DSEC_TRY(restrict_mount(proc.get(), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC, 0));
  return put_mount(proc.get(), root, "proc");
}

// What skopeo reads: certificates, and names of the hosts that it may reach.
Result<void> show_registry_tools(int root, const std::string& hosts) {
  for (const char* name : {"etc", "dev", "proc", "sys", "run"}) DSEC_TRY(make_directory(root, name));
  for (const char* name : {"ssl", "ca-certificates", "passwd", "group", "ld.so.cache", "localtime", "protocols", "services"}) DSEC_TRY(show(root, std::string("etc/") + name));
  for (const auto& [name, text] : {std::pair<const char*, std::string>{"etc/hosts", "127.0.0.1 localhost\n" + hosts}, {"etc/nsswitch.conf", "hosts: files\n"}}) {
    DSEC_ASSIGN(const sys::Fd file, sys::open_at(root, name, O_WRONLY | O_CREAT, 0644));
    DSEC_TRY(sys::write_all(file.get(), text));
  }
  return show_devices_and_processes(root);
}

// What apt, dpkg, perl and mmdebstrap read. Files that only root may read stay
// unreadable: the worker is nobody there.
Result<void> show_package_tools(int root) {
  for (const char* name : {"etc", "dev", "dev/shm", "proc", "sys", "run", "var", "var/lib", "var/lib/dpkg", "var/cache"}) DSEC_TRY(make_directory(root, name));
  for (const char* name : {"apt", "resolv.conf", "hosts", "nsswitch.conf", "host.conf", "gai.conf", "passwd", "group", "ssl", "ca-certificates",
                           "alternatives", "perl", "dpkg", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "login.defs", "protocols",
                           "services", "debian_version", "os-release", "mke2fs.conf"}) {
    DSEC_TRY(show(root, std::string("etc/") + name));
  }
  return show_devices_and_processes(root);
}

Result<void> limit(int resource, rlim_t value) {
  rlimit current{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &current) != 0) return errno_error("read a limit", errno);
  const rlim_t least = value < current.rlim_max ? value : current.rlim_max;
  const rlimit wanted{least, least};
  if (::setrlimit(static_cast<__rlimit_resource>(resource), &wanted) != 0) return errno_error("set a limit", errno);
  return {};
}

// Reading every file, and the marks of overlayfs on it (trusted.*), which a process
// has to be CAP_SYS_ADMIN of the host to see. What else that capability is good for
// the filter leaves no call for.
constexpr std::uint64_t kReaderCapabilities = 1ULL << CAP_SYS_ADMIN | 1ULL << CAP_DAC_READ_SEARCH;
// Writing a tree with foreign owners; nothing over processes, mounts or networks.
constexpr std::uint64_t kParserCapabilities = 1ULL << CAP_CHOWN | 1ULL << CAP_DAC_OVERRIDE | 1ULL << CAP_FOWNER | 1ULL << CAP_FSETID | 1ULL << CAP_SETFCAP;

Result<void> bound_capabilities(std::uint64_t kept) {
  for (int capability = 0; ::prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; capability++) {
    if ((kept >> capability & 1) != 0) continue;
    if (::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0) return errno_error("drop a capability", errno);
  }
  return {};
}

Result<void> keep_capabilities(std::uint64_t kept) {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[2] = {};
  for (int half = 0; half < 2; half++) data[half].effective = data[half].permitted = static_cast<std::uint32_t>(kept >> (32 * half));
  if (::syscall(SYS_capset, &header, data) != 0) return errno_error("drop capabilities", errno);
  return {};
}

// Nobody's on the host, with what it may of the tree kept over the change.
Result<void> become(unsigned id, std::uint64_t kept) {
  DSEC_TRY(bound_capabilities(kept));
  if (::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0) return errno_error("keep capabilities", errno);
  if (::setgroups(0, nullptr) != 0 || ::setresgid(id, id, id) != 0 || ::setresuid(id, id, id) != 0) return errno_error("give up root", errno);
  DSEC_TRY(keep_capabilities(kept));
  // The change of ids has cleared both.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno_error("die with the importer", errno);
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return errno_error("become undumpable", errno);
  return {};
}

}  // namespace

Result<void> enter_private_tree(WorkerProfile profile, std::uint64_t memory_bytes, const std::string& hosts) {
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return errno_error("make the mounts private", errno);
  DSEC_ASSIGN(const sys::Fd work, clone_tree(".", false));
  DSEC_TRY(restrict_mount(work.get(), MOUNT_ATTR_NODEV | (profile == WorkerProfile::kPackages ? 0 : MOUNT_ATTR_NOSUID), 0));
  DSEC_ASSIGN(const sys::Fd root, new_filesystem("tmpfs", {{"mode", "0755"}, {"size", "1m"}}));
  DSEC_TRY(put_mount(root.get(), AT_FDCWD, "."));

  if (profile != WorkerProfile::kReader) DSEC_TRY(show_program_directories(root.get()));
  DSEC_TRY(make_directory(root.get(), "work"));
  DSEC_TRY(put_mount(work.get(), root.get(), "work"));
  if (memory_bytes != 0) {
    const std::string size = std::to_string(memory_bytes);
    DSEC_ASSIGN(const sys::Fd memory, new_filesystem("tmpfs", {{"mode", "0755"}, {"size", size.c_str()}}));
    DSEC_TRY(make_directory(root.get(), "work/memory"));
    DSEC_TRY(put_mount(memory.get(), root.get(), "work/memory"));
  }
  if (::symlinkat("work", root.get(), "tmp") != 0) return errno_error("make /tmp", errno);
  if (profile == WorkerProfile::kPackages) DSEC_TRY(show_package_tools(root.get()));
  if (profile == WorkerProfile::kRegistry) DSEC_TRY(show_registry_tools(root.get(), hosts));

  if (::fchdir(root.get()) != 0) return errno_error("enter the private tree", errno);
  if (::syscall(SYS_pivot_root, ".", ".") != 0) return errno_error("change the root", errno);
  if (::umount2(".", MNT_DETACH) != 0) return errno_error("leave the host's tree", errno);
  if (::chdir("/") != 0) return errno_error("enter the root", errno);
  DSEC_TRY(restrict_mount(root.get(), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, 0));
  if (::chdir("/work") != 0) return errno_error("enter the private directory", errno);
  return {};
}

Result<void> limit_resources(WorkerProfile profile, unsigned long long largest_file) {
  DSEC_TRY(limit(RLIMIT_CORE, 0));
  DSEC_TRY(limit(RLIMIT_NOFILE, profile == WorkerProfile::kPackages || profile == WorkerProfile::kParser ? 4096 : 256));
  DSEC_TRY(limit(RLIMIT_FSIZE, largest_file));
  DSEC_TRY(limit(RLIMIT_NPROC, profile == WorkerProfile::kPackages ? 1024 : 64));
#if !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)  // they reserve terabytes of addresses
  DSEC_TRY(limit(RLIMIT_AS, 8ULL << 30));
#endif
  return {};
}

Result<void> drop_privileges(WorkerProfile profile, unsigned run_as) {
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return errno_error("give up new privileges", errno);
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return errno_error("become undumpable", errno);
  switch (profile) {
    case WorkerProfile::kParser:
      DSEC_TRY(bound_capabilities(kParserCapabilities));
      DSEC_TRY(keep_capabilities(kParserCapabilities));
      return install_parser_filter();
    case WorkerProfile::kReader:
      DSEC_TRY(become(run_as, kReaderCapabilities));
      return install_reader_filter();
    case WorkerProfile::kPackages:
      return install_package_filter();
    case WorkerProfile::kRegistry:
      DSEC_TRY(bound_capabilities(0));
      DSEC_TRY(keep_capabilities(0));
      return install_package_filter();
  }
  return Error(ErrorCode::kInternal, "a worker of no profile");
}

}  // namespace dsec::image
