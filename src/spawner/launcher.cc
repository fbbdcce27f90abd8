#include "spawner/launcher.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/fail_point.h"
#include "sys/file.h"
#include "sys/mounts.h"

namespace dsec::spawner {

namespace {

using protocol::LaunchStep;

constexpr std::uint64_t kLeastTmpfsBytes = 1 << 20;
constexpr auto kSlotPatience = std::chrono::seconds(10);

struct Upper {
  // Held until the overlay exists: closing a detached mount takes it apart, and
  // overlayfs refuses directories of a mount that is gone.
  sys::Fd mount;
  sys::Fd upper;
  sys::Fd work;
  sys::Fd shm;  // a mount of its own, of the same tmpfs
};

Result<void> make_directory(int dir, const char* name, mode_t mode, std::uint32_t owner) {
  if (::mkdirat(dir, name, mode) < 0) return errno_error(std::string("make ") + name, errno);
  if (::fchownat(dir, name, owner, owner, AT_SYMLINK_NOFOLLOW) < 0) return errno_error(std::string("own ") + name, errno);
  return {};
}

Result<sys::Fd> make_tmpfs(std::uint64_t bytes) {
  DSEC_ASSIGN(auto context, sys::FilesystemContext::open("tmpfs"));
  DSEC_TRY(context.set("size", std::to_string(std::max(bytes, kLeastTmpfsBytes))));
  DSEC_TRY(context.set("mode", "0755"));
  return context.mount(MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
}

Result<sys::Fd> make_shm(int tmpfs, std::uint32_t owner) {
  DSEC_TRY(make_directory(tmpfs, "shm", 01777, owner));
  return sys::clone_mount(tmpfs, "shm");  // nosuid and nodev are the tmpfs's
}

// One tmpfs, one superblock, one limit for the upper and /dev/shm.
Result<Upper> tmpfs_upper(std::uint64_t bytes, std::uint32_t owner) {
  Upper made;
  DSEC_ASSIGN(made.mount, make_tmpfs(bytes));
  const int mount = made.mount.get();
  DSEC_TRY(make_directory(mount, "upper", 0755, owner));
  DSEC_TRY(make_directory(mount, "work", 0755, owner));
  DSEC_ASSIGN(made.shm, make_shm(mount, owner));
  DSEC_ASSIGN(made.upper, sys::open_at(mount, "upper", O_PATH | O_DIRECTORY));
  DSEC_ASSIGN(made.work, sys::open_at(mount, "work", O_PATH | O_DIRECTORY));
  return made;
}

// Files get the slot's ids on disk, as in a tmpfs. An idmapped upper would keep
// 0 to 65535 there, but overlayfs makes its working files under the id of whoever
// mounts it, and host root has none in such a map: the sandbox would be read-only.
// Taking the payload's id for the mount makes this process undumpable, and then
// no slot can be mapped any more.
Result<Upper> directory_upper(int directory, std::uint64_t shm_bytes, std::uint32_t owner) {
  Upper made;
  DSEC_ASSIGN(made.mount, sys::clone_mount(directory));
  for (const char* name : {"upper", "work"}) {
    if (::mkdirat(directory, name, 0755) < 0 && errno != EEXIST) return errno_error(std::string("make ") + name, errno);
    if (::fchownat(directory, name, owner, owner, AT_SYMLINK_NOFOLLOW) < 0) return errno_error(std::string("own ") + name, errno);
  }
  // What a volatile overlay leaves behind; the next mount refuses to start over it.
  (void)::unlinkat(directory, "work/work/incompat/volatile", AT_REMOVEDIR);
  (void)::unlinkat(directory, "work/work/incompat", AT_REMOVEDIR);
  DSEC_ASSIGN(const sys::Fd tmpfs, make_tmpfs(shm_bytes));
  DSEC_ASSIGN(made.shm, make_shm(tmpfs.get(), owner));
  for (auto [fd, name] : {std::pair{&made.upper, "upper"}, std::pair{&made.work, "work"}}) {
    *fd = sys::Fd(sys::open_beneath(made.mount.get(), name, O_PATH | O_DIRECTORY));
    if (!*fd) return errno_error(std::string("open ") + name, errno);
  }
  return made;
}

// Written into the upper before the overlay exists, so an image's own links at
// these places are hidden, not followed.
Result<void> write_etc_files(int upper, const std::map<std::string, std::string>& files, std::uint32_t owner) {
  if (files.empty()) return {};
  if (::mkdirat(upper, "etc", 0755) == 0) {
    if (::fchownat(upper, "etc", owner, owner, AT_SYMLINK_NOFOLLOW) < 0) return errno_error("own etc", errno);
  } else if (errno != EEXIST) {
    return errno_error("make etc", errno);
  }
  const sys::Fd etc(sys::open_beneath(upper, "etc", O_RDONLY | O_DIRECTORY));
  if (!etc) return errno_error("open etc", errno);
  for (const auto& [name, text] : files) {
    if (name.empty() || name[0] == '.' || name.find('/') != std::string::npos) return invalid_argument("a name in etc: " + name);
    if (::unlinkat(etc.get(), name.c_str(), 0) < 0 && errno != ENOENT) return errno_error("replace etc/" + name, errno);
    const sys::Fd file(sys::open_beneath(etc.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0644));
    if (!file) return errno_error("make etc/" + name, errno);
    DSEC_TRY(sys::write_all(file.get(), text));
    if (::fchown(file.get(), owner, owner) < 0) return errno_error("own etc/" + name, errno);
  }
  return {};
}

Result<sys::Fd> make_overlay(const std::vector<sys::Fd>& lowest_first, const Upper& upper) {
  DSEC_ASSIGN(auto context, sys::FilesystemContext::open("overlay"));
  DSEC_TRY(context.set("source", "sandbox"));
  for (auto layer = lowest_first.rbegin(); layer != lowest_first.rend(); ++layer) DSEC_TRY(context.set_fd("lowerdir+", layer->get()));
  DSEC_TRY(context.set_fd("upperdir", upper.upper.get()));
  DSEC_TRY(context.set_fd("workdir", upper.work.get()));
  DSEC_TRY(context.set_flag("volatile"));
  return context.mount(MOUNT_ATTR_NODEV);
}

Result<void> put(int fd, int number) {
  if (::dup3(fd, number, O_CLOEXEC) < 0) return errno_error("put a descriptor in its place", errno);
  return {};
}

}  // namespace

Launcher::Launcher(const Node& node, const sys::CgroupTree& cgroups, SlotPool& pool, int worker, const std::vector<sock_filter>& filter)
    : node_(node), cgroups_(cgroups), pool_(pool), block_(kFirstBlockFd + worker * kBlockFds), filter_(filter), maker_(node) {}

Result<void> Launcher::prepare(const protocol::LaunchRequest& request, const LaunchDescriptors& descriptors, Slot& slot, Stage& stage) {
  const sys::CgroupLimits limits{request.memory_bytes, request.cpu_millis, request.processes, request.batch};
  DSEC_TRY(fail_point("spawner.launch.limits"));
  if (slot.limits != limits) {
    slot.limits.reset();
    DSEC_TRY(cgroups_.limit(slot.name(), limits));
    slot.limits = limits;
  }
  mark(stage, LaunchStep::kLimits);

  const std::uint32_t owner = payload_id(slot.number);
  DSEC_TRY(fail_point("spawner.launch.upper"));
  Result<Upper> upper = request.upper == protocol::UpperKind::kTmpfs
                            ? tmpfs_upper(request.upper_bytes, owner)
                            : directory_upper(descriptors.directory, request.memory_bytes / 2, owner);
  if (!upper) return std::move(upper).error();
  DSEC_TRY(write_etc_files(upper->upper.get(), request.etc_files, owner));
  mark(stage, LaunchStep::kUpper);

  DSEC_TRY(fail_point("spawner.launch.layers"));
  std::vector<sys::Fd> layers;
  for (int layer : descriptors.layers) {
    DSEC_ASSIGN(sys::Fd clone, sys::clone_mount(layer));
    DSEC_TRY(sys::idmap_mount(clone.get(), slot.namespaces.outer.get()));
    layers.push_back(std::move(clone));
  }
  mark(stage, LaunchStep::kLayers);

  DSEC_TRY(fail_point("spawner.launch.overlay"));
  DSEC_ASSIGN(sys::Fd overlay, make_overlay(layers, *upper));
  mark(stage, LaunchStep::kOverlay);

  DSEC_TRY(fail_point("spawner.launch.trees"));
  DSEC_ASSIGN(sys::Fd devices, sys::clone_mount(node_.devices.get()));
  DSEC_ASSIGN(sys::Fd sysfs, sys::clone_mount(node_.sysfs.get()));
  auto at = [&](Place p) { return block_ + static_cast<int>(p); };
  DSEC_TRY(put(descriptors.listener, at(Place::kListen)));
  DSEC_TRY(put(slot.namespaces.inner.get(), at(Place::kInner)));
  constexpr Place kTasks[] = {Place::kMemoryTasks, Place::kCpuTasks, Place::kPidsTasks};
  for (std::size_t i = 0; i < stage.v1.size(); ++i) {
    stage.v1[i] = slot.cgroups.v1_tasks[i].valid();
    DSEC_TRY(put(stage.v1[i] ? slot.cgroups.v1_tasks[i].get() : node_.null.get(), at(kTasks[i])));
  }
  DSEC_TRY(put(slot.cgroups.payload.get(), at(Place::kPayload)));
  DSEC_TRY(put(node_.agent.get(), at(Place::kAgent)));
  DSEC_TRY(put(node_.null.get(), at(Place::kNull)));

  stage.node = &node_;
  stage.init_stack = &init_stack_;
  stage.filter = filter_.data();
  stage.filter_length = static_cast<unsigned short>(filter_.size());
  stage.block = block_;
  stage.overlay = overlay.get();
  stage.devices = devices.get();
  stage.shm = upper->shm.get();
  stage.sysfs = sysfs.get();
  stage.outer = slot.namespaces.outer.get();
  stage.network = slot.namespaces.network.get();
  stage.cgroup = slot.namespaces.cgroup.get();
  stage.agent_cgroup = slot.cgroups.agent.get();
  stage.payload_uid = owner;
  std::strncpy(stage.hostname, request.hostname.c_str(), sizeof stage.hostname - 1);
  for (sys::Fd* fd : {&overlay, &devices, &upper->shm, &sysfs}) mounts_.push_back(std::move(*fd));
  mark(stage, LaunchStep::kTrees);
  return {};
}

Launched Launcher::launch(const protocol::LaunchRequest& request, const LaunchDescriptors& descriptors) {
  Launched out;
  Stage stage;
  stage.last_nsec = monotonic_nsec();
  stage.step = LaunchStep::kSlot;
  auto refuse = [&](int error, std::string message) {
    out.reply.step = stage.step;
    out.reply.error_number = error;
    out.reply.message = std::move(message);
    out.reply.step_nsec = stage.step_nsec;
  };
  Result<Slot> taken = pool_.take(maker_, Deadline::in(kSlotPatience));
  if (!taken) return refuse(taken.error().error_number(), taken.error().message()), std::move(out);
  Slot slot = std::move(*taken);
  mark(stage, LaunchStep::kSlot);

  const Result<void> prepared = prepare(request, descriptors, slot, stage);
  if (prepared.ok()) run_stage(stage, stager_stack_);
  mounts_.clear();
  // Our copies; the numbers stay taken.
  for (Place p : {Place::kListen, Place::kInner, Place::kMemoryTasks, Place::kCpuTasks, Place::kPidsTasks, Place::kPayload})
    ::dup3(node_.null.get(), block_ + static_cast<int>(p), O_CLOEXEC);
  out.pidfd = sys::Fd(stage.pidfd);

  if (!prepared.ok() || !stage.executing) {
    // Whatever began is over: each child was waited for, and PID 1's end took the rest along.
    if (!prepared.ok()) refuse(prepared.error().error_number(), prepared.error().message());
    else refuse(stage.error ? stage.error : EINTR, stage.what ? stage.what : "killed");
    out.pidfd.reset();
    pool_.put_back(std::move(slot));
    return out;
  }
  const auto identity = sys::process_identity(out.pidfd.get());
  out.reply.launched = true;
  out.reply.slot = slot.name();
  out.reply.generation = slot.generation;
  out.reply.pid = static_cast<std::uint32_t>(stage.pid);
  out.reply.oom_kills = slot.oom_kills;
  out.reply.identity = identity.ok() ? *identity : 0;
  out.reply.step_nsec = stage.step_nsec;
  pool_.keep_used(std::move(slot));
  return out;
}

}  // namespace dsec::spawner
