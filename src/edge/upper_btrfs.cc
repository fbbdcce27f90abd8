// The btrfs pool. A sandbox's subvolume comes from the stock by a rename and is
// dropped by it; the calls are made on the top directory.
#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/loop.h>
#include <linux/mount.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <set>

#include "edge/upper_pool.h"
#include "sys/file.h"

extern char** environ;

namespace dsec::edge {
namespace {

constexpr char kKeptName[] = "pool/btrfs";
constexpr char kPrefix[] = "s-";  // of a sandbox's subvolume
constexpr std::uint64_t kSimpleQuota = 4;  // BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA, Linux 6.7
constexpr std::uint64_t kFullQuota = 1;    // BTRFS_QUOTA_CTL_ENABLE
constexpr std::uint64_t kSmallestPool = 1ULL << 30;

Result<void> run(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT) return Error(ErrorCode::kUnsupported, arguments[0] + " is not installed (Debian: btrfs-progs)");
  if (error != 0) return errno_error("start " + arguments[0], error);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return errno_error("wait for " + arguments[0], errno);
  if (status != 0) return Error(ErrorCode::kUnsupported, arguments[0] + " failed");
  return {};
}

Result<std::uint64_t> free_bytes_beside(const std::string& path) {
  struct statvfs s {};
  const std::string directory = path.substr(0, path.rfind('/') + 1);
  if (::statvfs(directory.c_str(), &s) != 0) return errno_error("look at " + directory, errno);
  return std::uint64_t{s.f_bavail} * s.f_frsize;
}

// A half-made file system must not be met as a whole one: made under another name.
Result<void> make_image(const BtrfsUpperPool::Options& options) {
  DSEC_ASSIGN(const std::uint64_t available, free_bytes_beside(options.image));
  const std::uint64_t size = options.size_bytes != 0 ? options.size_bytes : available / 5 * 4;
  if (size < kSmallestPool) return Error(ErrorCode::kUnsupported, "less than 1 GiB of disk is free for the pool");
  const std::string temporary = options.image + ".new";
  ::unlink(temporary.c_str());
  {
    DSEC_ASSIGN(const sys::Fd file, sys::open_at(AT_FDCWD, temporary, O_RDWR | O_CREAT | O_EXCL, 0600));
    if (::ftruncate(file.get(), static_cast<off_t>(size / 4096 * 4096)) != 0) return errno_error("size the pool", errno);
  }
  // -K: no discard pass over a file that is a hole; single metadata: the pool is disposable.
  DSEC_TRY(run({"mkfs.btrfs", "-q", "-K", "-m", "single", temporary}));
  if (::rename(temporary.c_str(), options.image.c_str()) != 0) return errno_error("name the pool", errno);
  return {};
}

// The loop device that already has this file, or "". One file system on two loop
// devices would be taken for a duplicate and refused.
std::string attached_loop(const std::string& image) {
  const Result<std::vector<std::string>> devices = sys::list_directory("/sys/block");
  if (!devices.ok()) return "";
  for (const std::string& device : *devices) {
    if (!device.starts_with("loop")) continue;
    Result<std::string> file = sys::read_file("/sys/block/" + device + "/loop/backing_file");
    if (!file.ok()) continue;
    while (file->ends_with('\n')) file->pop_back();
    if (*file == image) return "/dev/" + device;
  }
  return "";
}

Result<sys::Fd> attach_loop(const std::string& image, std::string& device) {
  device = attached_loop(image);
  if (!device.empty()) return sys::open_at(AT_FDCWD, device, O_RDWR);
  // loop opens the file as it was opened for it: direct I/O keeps its pages out of the cache.
  DSEC_ASSIGN(const sys::Fd file, sys::open_at(AT_FDCWD, image, O_RDWR | O_DIRECT));
  DSEC_ASSIGN(const sys::Fd control, sys::open_at(AT_FDCWD, "/dev/loop-control", O_RDWR));
  for (int attempt = 0; attempt < 16; attempt++) {
    const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) return errno_error("find a free loop device", errno);
    device = "/dev/loop" + std::to_string(number);
    DSEC_ASSIGN(sys::Fd loop, sys::open_at(AT_FDCWD, device, O_RDWR));
    loop_config config{};
    config.fd = static_cast<unsigned>(file.get());
    config.block_size = 4096;
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO;
    if (::ioctl(loop.get(), LOOP_CONFIGURE, &config) == 0) return loop;
    if (errno != EBUSY) return errno_error("attach the pool to " + device, errno);
  }
  return Error(ErrorCode::kExhausted, "every free loop device was taken by another program first");
}

Result<sys::Fd> mount_detached(const std::string& device) {
  const sys::Fd context(static_cast<int>(::syscall(SYS_fsopen, "btrfs", FSOPEN_CLOEXEC)));
  if (!context) return errno_error("this kernel has no btrfs", errno);
  const auto set = [&context](unsigned command, const char* key, const char* value) {
    return ::syscall(SYS_fsconfig, context.get(), command, key, value, 0);
  };
  set(FSCONFIG_SET_STRING, "source", device.c_str());
  set(FSCONFIG_SET_FLAG, "noatime", nullptr);
  // Space of ended sandboxes goes back to the host's file system.
  set(FSCONFIG_SET_STRING, "discard", "async");
  if (set(FSCONFIG_CMD_CREATE, nullptr, nullptr) != 0) return errno_error("mount the pool", errno);
  sys::Fd mount(static_cast<int>(
      ::syscall(SYS_fsmount, context.get(), FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOATIME)));
  if (!mount) return errno_error("mount the pool", errno);
  return mount;
}

// "simple" where the kernel has it: accounting without back references.
Result<std::string> enable_quota(int root) {
  for (const auto& [command, name] : {std::pair{kSimpleQuota, "simple"}, std::pair{kFullQuota, "full"}}) {
    btrfs_ioctl_quota_ctl_args arguments{};
    arguments.cmd = command;
    if (::ioctl(root, BTRFS_IOC_QUOTA_CTL, &arguments) == 0) return std::string(name);
  }
  return errno_error("enable quota in the pool", errno);
}

// Where the kernel tells what the groups hold.
Result<std::string> quota_groups_of(int root) {
  btrfs_ioctl_fs_info_args info{};
  if (::ioctl(root, BTRFS_IOC_FS_INFO, &info) != 0) return errno_error("ask which file system the pool is", errno);
  std::string uuid;
  for (std::size_t i = 0; i < sizeof info.fsid; ++i) uuid += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", info.fsid[i]);
  return "/sys/fs/btrfs/" + uuid + "/qgroups";
}

Result<std::string> name_of(const std::string& id) {
  if (id.empty() || id.find('/') != std::string::npos || id.size() > 200) return invalid_argument("not a name for a subvolume: " + id);
  return kPrefix + id;
}

Result<void> limit_subvolume(int root, std::uint64_t tree, std::uint64_t bytes) {
  btrfs_ioctl_qgroup_limit_args limit{};
  limit.qgroupid = tree;
  limit.lim.flags = BTRFS_QGROUP_LIMIT_MAX_RFER;
  limit.lim.max_rfer = bytes;
  if (::ioctl(root, BTRFS_IOC_QGROUP_LIMIT, &limit) != 0) return errno_error("limit the subvolume", errno);
  return {};
}

}  // namespace

Result<std::unique_ptr<BtrfsUpperPool>> BtrfsUpperPool::open(Options options, sys::DescriptorKeeper& keeper) {
  DSEC_ASSIGN(std::vector<sys::KeptDescriptor> kept, keeper.get(kKeptName));
  sys::Fd mount;
  if (!kept.empty()) {
    mount = std::move(kept[0].fd);
  } else {
    if (::access(options.image.c_str(), F_OK) != 0) DSEC_TRY(make_image(options).within("make the disk pool"));
    std::string device;
    DSEC_ASSIGN(const sys::Fd loop, attach_loop(options.image, device));
    DSEC_ASSIGN(mount, mount_detached(device));
    DSEC_TRY(keeper.put(kKeptName, mount.get()));
  }
  // A mount's descriptor is a path only; ioctls need the directory open.
  DSEC_ASSIGN(sys::Fd root, sys::open_at(mount.get(), ".", O_RDONLY | O_DIRECTORY));
  DSEC_ASSIGN(std::string quota, enable_quota(root.get()));
  DSEC_ASSIGN(std::unique_ptr<SubvolumeStock> stock, SubvolumeStock::open(root.get()));
  DSEC_ASSIGN(std::string groups, quota_groups_of(root.get()));
  return std::unique_ptr<BtrfsUpperPool>(new BtrfsUpperPool(keeper, std::move(root), std::move(quota), std::move(groups), std::move(stock)));
}

Result<UpperLayer> BtrfsUpperPool::create(const std::string& id, std::uint64_t limit_bytes) {
  DSEC_ASSIGN(const std::string name, name_of(id));
  DSEC_ASSIGN(Subvolume made, stock_->take());
  // The limit before the name: nothing that a sandbox can be found by is without one.
  Result<void> step = limit_subvolume(root_.get(), made.tree, limit_bytes);
  const auto named = [&] { return ::renameat2(root_.get(), made.name.c_str(), root_.get(), name.c_str(), RENAME_NOREPLACE) == 0; };
  if (step.ok() && !named() && (errno != EEXIST || !stock_->wait_for_drop(name) || !named()))
    step = errno == EEXIST ? Error(ErrorCode::kConflict, "there is a writable layer of this name", EEXIST) : errno_error("name the subvolume", errno);
  if (!step.ok()) {
    stock_->throw_away(made.name);
    return std::move(step).error();
  }
  return UpperLayer{std::move(made.directory), limit_bytes};
}

Result<UpperLayer> BtrfsUpperPool::open(const std::string& id) {
  DSEC_ASSIGN(const std::string name, name_of(id));
  DSEC_ASSIGN(sys::Fd directory, sys::open_at(root_.get(), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  return UpperLayer{std::move(directory), 0};
}

namespace {

class BtrfsSnapshot final : public UpperSnapshot {
 public:
  BtrfsSnapshot(SubvolumeStock& stock, Subvolume made) : stock_(stock), made_(std::move(made)) {}
  ~BtrfsSnapshot() override {
    made_.directory.reset();
    stock_.throw_away(made_.name);
  }
  backend::WritableLayer layer() const override { return {backend::WritableLayer::Kind::kDirectory, made_.directory.get(), 0}; }

 private:
  SubvolumeStock& stock_;
  Subvolume made_;
};

}  // namespace

Result<std::unique_ptr<UpperSnapshot>> BtrfsUpperPool::snapshot(const std::string& id) {
  DSEC_ASSIGN(const UpperLayer upper, open(id));
  DSEC_ASSIGN(Subvolume made, stock_->snapshot(upper.directory.get()));
  return std::unique_ptr<UpperSnapshot>(std::make_unique<BtrfsSnapshot>(*stock_, std::move(made)));
}

Result<std::uint64_t> BtrfsUpperPool::used_bytes(const std::string& id) {
  DSEC_ASSIGN(const UpperLayer upper, open(id));
  DSEC_ASSIGN(const std::uint64_t tree, tree_of(upper.directory.get()));
  DSEC_ASSIGN(const std::string text, sys::read_file(quota_groups_ + "/0_" + std::to_string(tree) + "/referenced"));
  std::uint64_t bytes = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), bytes).ec != std::errc()) return Error(ErrorCode::kInternal, "the quota group tells no number");
  return bytes;
}

// The transaction of the last change to any of its inodes. A snapshot is made at the end of its
// transaction: whatever changes later has a higher one.
Result<std::uint64_t> BtrfsUpperPool::change_mark(const std::string& id) {
  DSEC_ASSIGN(const UpperLayer upper, open(id));
  btrfs_ioctl_get_subvol_info_args info{};
  // Some kernels answer 1 where they mean 0.
  if (::ioctl(upper.directory.get(), BTRFS_IOC_GET_SUBVOL_INFO, &info) < 0) return errno_error("ask when the subvolume changed", errno);
  return std::uint64_t{info.ctransid};
}

Result<void> BtrfsUpperPool::remove(const std::string& id) {
  DSEC_ASSIGN(const std::string name, name_of(id));
  stock_->throw_away(name);
  return {};
}

Result<std::size_t> BtrfsUpperPool::sweep(const std::vector<std::string>& live) {
  const std::set<std::string> keep(live.begin(), live.end());
  DSEC_ASSIGN(const std::vector<std::string> names, sys::list_directory("/proc/self/fd/" + std::to_string(root_.get())));
  std::size_t removed = 0;
  for (const std::string& name : names) {
    if (!name.starts_with(kPrefix)) continue;
    const std::string id = name.substr(sizeof kPrefix - 1);
    if (keep.contains(id)) continue;
    DSEC_TRY(remove(id));
    removed++;
  }
  return removed;
}

std::string BtrfsUpperPool::describe() const {
  struct statvfs s {};
  std::string size = "?";
  if (::fstatvfs(root_.get(), &s) == 0) size = std::to_string((std::uint64_t{s.f_blocks} * s.f_frsize) >> 30);
  return "btrfs pool of " + size + " GiB, " + quota_ + " quota";
}

Result<void> BtrfsUpperPool::release() { return keeper_.drop(kKeptName); }

}  // namespace dsec::edge
