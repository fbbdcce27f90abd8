#include "spawner/launcher.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "base/fail_point.h"
#include "base/log.h"
#include "sys/file.h"
#include "sys/mounts.h"
#include "sys/unix_socket.h"

namespace dsec::spawner {

namespace {

using protocol::LaunchStep;

constexpr std::uint64_t kLeastTmpfsBytes = 1 << 20;
constexpr auto kSlotPatience = std::chrono::seconds(10);

// Held until the overlay exists: closing a detached mount takes it apart, and
// overlayfs refuses directories of a mount that is gone.
struct Upper {
  sys::Fd mount;  // of a directory; that of the memory is the skeleton's
  sys::Fd upper;
  sys::Fd work;
};

Result<void> open_upper(int mount, Upper& out) {
  for (auto [fd, name] : {std::pair{&out.upper, "upper"}, std::pair{&out.work, "work"}}) {
    *fd = sys::Fd(sys::open_beneath(mount, name, O_PATH | O_DIRECTORY));
    if (!*fd) return errno_error(std::string("open ") + name, errno);
  }
  return {};
}

// Files get the slot's ids on disk, as in a tmpfs. An idmapped upper would keep
// 0 to 65535 there, but overlayfs makes its working files under the id of whoever
// mounts it, and host root has none in such a map: the sandbox would be read-only.
// Taking the payload's id for the mount makes this process undumpable, and then
// no slot can be mapped any more.
Result<Upper> directory_upper(int directory, std::uint32_t owner) {
  Upper made;
  DSEC_ASSIGN(made.mount, sys::clone_mount(directory));
  for (const char* name : {"upper", "work"}) {
    const auto owned = [&] { return ::fchownat(directory, name, owner, owner, AT_SYMLINK_NOFOLLOW) == 0; };
    if (!owned() && (errno != ENOENT || ::mkdirat(directory, name, 0755) < 0 || !owned())) return errno_error(std::string("own ") + name, errno);
  }
  // What a volatile overlay leaves behind; the next mount refuses to start over it.
  (void)::unlinkat(directory, "work/work/incompat/volatile", AT_REMOVEDIR);
  (void)::unlinkat(directory, "work/work/incompat", AT_REMOVEDIR);
  DSEC_TRY(open_upper(made.mount.get(), made));
  return made;
}

Result<Upper> memory_upper(int memory) {
  Upper made;
  DSEC_TRY(open_upper(memory, made));
  return made;
}

// Written before the overlay exists into a layer above the image, whose own links
// at these places are hidden then, not followed.
Result<void> write_etc_files(int layer, const std::map<std::string, std::string>& files, std::uint32_t owner) {
  if (files.empty()) return {};
  if (::mkdirat(layer, "etc", 0755) == 0) {
    if (::fchownat(layer, "etc", owner, owner, AT_SYMLINK_NOFOLLOW) < 0) return errno_error("own etc", errno);
  } else if (errno != EEXIST) {
    return errno_error("make etc", errno);
  }
  const sys::Fd etc(sys::open_beneath(layer, "etc", O_RDONLY | O_DIRECTORY));
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

// On a directory of the root filesystem, made where it is missing. What an image
// has put there instead (a link, a file) makes the launch fail: no link is followed.
Result<void> attach(int mount, int root, const char* name, std::uint32_t owner) {
  int done = ::move_mount(mount, "", root, name, MOVE_MOUNT_F_EMPTY_PATH);
  if (done < 0 && errno == ENOENT) {
    if (::mkdirat(root, name, 0755) < 0 || ::fchownat(root, name, owner, owner, AT_SYMLINK_NOFOLLOW) < 0)
      return errno_error(std::string("make /") + name, errno);
    done = ::move_mount(mount, "", root, name, MOVE_MOUNT_F_EMPTY_PATH);
  }
  if (done < 0) return errno_error(std::string("mount on /") + name + " of the image", errno);
  return {};
}

std::int64_t monotonic_nsec() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * std::int64_t{1'000'000'000} + t.tv_nsec;
}

}  // namespace

// The steps of a launch and their times.
struct Launcher::Timer {
  std::int64_t last_nsec = monotonic_nsec();
  LaunchStep step = LaunchStep::kSlot;  // begun
  std::array<std::uint32_t, protocol::kLaunchSteps> nsec{};

  // Ends `step` and begins the next.
  void next() {
    const std::int64_t now = monotonic_nsec();
    const std::size_t i = static_cast<std::size_t>(step);
    nsec[i] = static_cast<std::uint32_t>(now - last_nsec);
    last_nsec = now;
    if (i + 1 < protocol::kLaunchSteps) step = static_cast<LaunchStep>(i + 1);
  }
};

Result<Home> Home::open(const Node& node) {
  Home home;
  DSEC_ASSIGN(home.mounts, sys::open_at(node.proc.get(), "thread-self/ns/mnt", O_RDONLY));
  DSEC_ASSIGN(home.names, sys::open_at(node.proc.get(), "thread-self/ns/uts", O_RDONLY));
  return home;
}

Launcher::Launcher(const Node& node, const sys::CgroupTree& cgroups, SlotPool& pool, int worker,
                   const std::vector<sock_filter>& narrow_filter, Home home)
    : node_(node), cgroups_(cgroups), pool_(pool), maker_(node, worker, narrow_filter), home_(std::move(home)) {}

// The root goes on top of the empty one that aether started in. Below it is
// nothing, and nobody inside may look: the payload's user namespace is not the
// one that owns the mount namespace.
Result<void> Launcher::enter(const Skeleton& skeleton, const sys::Fd& root, const std::string& hostname) {
  if (::setns(skeleton.pidfd.get(), CLONE_NEWNS | CLONE_NEWUTS) < 0) return errno_error("enter the sandbox", errno);
  Result<void> done;
  if (::move_mount(root.get(), "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH) < 0) done = errno_error("attach the root", errno);
  else if (::sethostname(hostname.c_str(), std::min<std::size_t>(hostname.size(), 64)) < 0) done = errno_error("set the hostname", errno);
  // A worker that stayed inside would make every later sandbox there.
  DSEC_CHECK(::setns(home_.mounts.get(), CLONE_NEWNS) == 0 && ::setns(home_.names.get(), CLONE_NEWUTS) == 0);
  return done;
}

Result<void> Launcher::build(const protocol::LaunchRequest& request, const LaunchDescriptors& descriptors, Slot& slot, Timer& timer) {
  const sys::CgroupLimits limits{request.memory_bytes, request.cpu_millis, request.processes, request.batch};
  DSEC_TRY(fail_point("spawner.launch.limits"));
  if (slot.limits != limits) {
    slot.limits.reset();
    DSEC_TRY(cgroups_.limit(slot.name(), limits));
    slot.limits = limits;
  }
  timer.next();

  const std::uint32_t owner = payload_id(slot.number);
  const bool in_memory = request.upper == protocol::UpperKind::kTmpfs;
  const std::uint64_t size = std::max(in_memory ? request.upper_bytes : request.memory_bytes / 2, kLeastTmpfsBytes);
  DSEC_TRY(fail_point("spawner.launch.upper"));
  // Nothing is written to it before, and most launches want what the last one did.
  if (slot.skeleton.memory_bytes != size) DSEC_TRY(sys::reconfigure_mount(slot.skeleton.memory.get(), "size", std::to_string(size)));
  slot.memory_bytes = size;
  const Result<Upper> upper = in_memory ? memory_upper(slot.skeleton.memory.get()) : directory_upper(descriptors.directory, owner);
  if (!upper.ok()) return upper.error();
  // Beside an upper on a disk they are a layer of their own in memory: three files
  // cost a disk's file system as much as the rest of an upper does.
  sys::Fd files;
  if (!in_memory) {
    files = sys::Fd(sys::open_beneath(slot.skeleton.memory.get(), "files", O_PATH | O_DIRECTORY));
    if (!files) return errno_error("open files", errno);
  }
  DSEC_TRY(write_etc_files(in_memory ? upper->upper.get() : files.get(), request.etc_files, owner));
  timer.next();

  DSEC_TRY(fail_point("spawner.launch.layers"));
  std::vector<sys::Fd> layers;
  for (int layer : descriptors.layers) {
    DSEC_ASSIGN(sys::Fd clone, sys::clone_mount(layer));
    DSEC_TRY(sys::idmap_mount(clone.get(), slot.namespaces.outer.get()));
    layers.push_back(std::move(clone));
  }
  if (files) layers.push_back(std::move(files));
  timer.next();

  DSEC_TRY(fail_point("spawner.launch.overlay"));
  DSEC_ASSIGN(const sys::Fd root, make_overlay(layers, *upper));
  timer.next();

  DSEC_TRY(fail_point("spawner.launch.root"));
  DSEC_ASSIGN(const sys::Fd sysfs, sys::clone_mount(node_.sysfs.get()));
  DSEC_TRY(attach(slot.skeleton.devices.get(), root.get(), "dev", owner));
  DSEC_TRY(attach(slot.skeleton.proc.get(), root.get(), "proc", owner));
  DSEC_TRY(attach(sysfs.get(), root.get(), "sys", owner));
  if (::mkdirat(root.get(), "tmp", 01777) == 0) (void)::fchownat(root.get(), "tmp", owner, owner, AT_SYMLINK_NOFOLLOW);
  timer.next();

  DSEC_TRY(fail_point("spawner.launch.enter"));
  DSEC_TRY(enter(slot.skeleton, root, request.hostname));
  timer.next();

  DSEC_TRY(fail_point("spawner.launch.activate"));
  DSEC_TRY(sys::send_message(slot.skeleton.control.get(), "r", {descriptors.listener, root.get()}).within("activate the agent"));
  timer.next();
  return {};
}

// In memory, an upper has no name by which it could be found again: what is above
// it is in the sandbox, and it is not.
Result<std::string> Launcher::handle_of_upper(const protocol::LaunchRequest& request, const Slot& slot) {
  if (request.upper != protocol::UpperKind::kTmpfs) return std::string();
  return sys::file_handle(slot.skeleton.memory.get(), "upper");
}

Launched Launcher::launch(const protocol::LaunchRequest& request, const LaunchDescriptors& descriptors) {
  Launched out;
  Timer timer;
  auto refuse = [&](const Error& error) {
    out.reply.step = timer.step;
    out.reply.error_number = error.error_number();
    out.reply.message = error.message();
    out.reply.step_nsec = timer.nsec;
  };
  Result<Slot> taken = pool_.take(maker_, Deadline::in(kSlotPatience));
  if (!taken.ok()) return refuse(taken.error()), std::move(out);
  Slot slot = std::move(*taken);
  timer.next();

  Result<std::string> handle = handle_of_upper(request, slot);
  const Result<void> built = handle.ok() ? build(request, descriptors, slot, timer) : Result<void>(handle.error());
  if (!built.ok()) {
    refuse(built.error());
    pool_.put_back(std::move(slot));
    return out;
  }
  out.reply.launched = true;
  out.reply.slot = slot.name();
  out.reply.generation = slot.generation;
  out.reply.pid = slot.skeleton.pid;
  out.reply.oom_kills = slot.oom_kills;
  out.reply.identity = slot.skeleton.identity;
  out.reply.first_id = payload_id(slot.number);
  out.reply.upper_handle = std::move(*handle);
  out.reply.step_nsec = timer.nsec;
  out.skeleton = std::exchange(slot.skeleton, {});
  out.skeleton.control.reset();
  out.skeleton.proc.reset();
  out.skeleton.devices.reset();
  out.skeleton.memory.reset();
  pool_.keep_used(std::move(slot));
  return out;
}

void Launcher::abandon(Launched launched) {
  end_skeleton(std::move(launched.skeleton));
  if (auto released = pool_.release(launched.reply.slot, launched.reply.generation); !released.ok() || !*released)
    log_warning("a launch that nobody waited for is not released", {{"slot", launched.reply.slot}});
}

}  // namespace dsec::spawner
