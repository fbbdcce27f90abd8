#include "spawner/skeleton.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/fail_point.h"
#include "base/log.h"
#include "sys/mounts.h"

namespace dsec::spawner {

namespace {

constexpr auto kEndPatience = std::chrono::seconds(5);

Result<void> put(int fd, int number) {
  if (::dup3(fd, number, O_CLOEXEC) < 0) return errno_error("put a descriptor in its place", errno);
  return {};
}

// On a name directly below a mount of ours: no image has a say in what is there.
Result<void> attach(int mount, int below, const char* name) {
  if (::move_mount(mount, "", below, name, MOVE_MOUNT_F_EMPTY_PATH) < 0) return errno_error(std::string("attach ") + name, errno);
  return {};
}

Result<void> make_directory(int dir, const char* name, mode_t mode, std::uint32_t owner) {
  if (::mkdirat(dir, name, mode) < 0) return errno_error(std::string("make ") + name, errno);
  if (::fchownat(dir, name, owner, owner, AT_SYMLINK_NOFOLLOW) < 0) return errno_error(std::string("own ") + name, errno);
  return {};
}

Result<sys::Fd> make_memory(std::uint32_t owner, std::uint64_t bytes) {
  DSEC_ASSIGN(auto context, sys::FilesystemContext::open("tmpfs"));
  DSEC_TRY(context.set("size", std::to_string(bytes)));
  DSEC_TRY(context.set("mode", "0755"));
  DSEC_ASSIGN(sys::Fd memory, context.mount(MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV));
  DSEC_TRY(make_directory(memory.get(), "upper", 0755, owner));
  DSEC_TRY(make_directory(memory.get(), "work", 0755, owner));
  DSEC_TRY(make_directory(memory.get(), "files", 0755, owner));
  DSEC_TRY(make_directory(memory.get(), "shm", 01777, owner));
  return memory;
}

}  // namespace

Result<void> SkeletonMaker::put_descriptors(const Slot& slot, int control, Stage& stage) {
  auto at = [&](Place p) { return block_ + static_cast<int>(p); };
  DSEC_TRY(put(control, at(Place::kControl)));
  DSEC_TRY(put(slot.namespaces.inner.get(), at(Place::kInner)));
  constexpr Place kTasks[] = {Place::kMemoryTasks, Place::kCpuTasks, Place::kPidsTasks};
  for (std::size_t i = 0; i < stage.v1.size(); ++i) {
    stage.v1[i] = slot.cgroups.v1_tasks[i].valid();
    DSEC_TRY(put(stage.v1[i] ? slot.cgroups.v1_tasks[i].get() : node_.null.get(), at(kTasks[i])));
  }
  DSEC_TRY(put(slot.cgroups.payload.get(), at(Place::kPayload)));
  DSEC_TRY(put(node_.agent.get(), at(Place::kAgent)));
  return put(node_.null.get(), at(Place::kNull));
}

Result<void> SkeletonMaker::furnish(const Slot& slot, Skeleton& skeleton, const sys::Fd& terminals, const sys::Fd& queues) {
  DSEC_TRY(fail_point("spawner.skeleton.masks"));
  for (const Mask& mask : node_.masked) {
    DSEC_ASSIGN(const sys::Fd cover, sys::clone_mount(node_.masks.get(), mask.directory ? "directory" : "file"));
    DSEC_TRY(attach(cover.get(), skeleton.proc.get(), mask.name.c_str()));
  }
  DSEC_TRY(fail_point("spawner.skeleton.devices"));
  DSEC_ASSIGN(skeleton.devices, sys::clone_mount(node_.devices.get()));
  DSEC_TRY(attach(terminals.get(), skeleton.devices.get(), "pts"));
  DSEC_TRY(attach(queues.get(), skeleton.devices.get(), "mqueue"));
  DSEC_TRY(fail_point("spawner.skeleton.memory"));
  DSEC_ASSIGN(skeleton.memory, make_memory(payload_id(slot.number), slot.memory_bytes));
  skeleton.memory_bytes = slot.memory_bytes;
  DSEC_ASSIGN(const sys::Fd shm, sys::clone_mount(skeleton.memory.get(), "shm"));  // nosuid and nodev are the tmpfs's
  return attach(shm.get(), skeleton.devices.get(), "shm");
}

Result<Skeleton> SkeletonMaker::make(const Slot& slot) {
  DSEC_TRY(fail_point("spawner.skeleton"));
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) return errno_error("socketpair", errno);
  Skeleton made;
  made.control = sys::Fd(ends[0]);
  sys::Fd theirs(ends[1]);
  Stage stage;
  DSEC_TRY(put_descriptors(slot, theirs.get(), stage));
  theirs.reset();
  stage.node = &node_;
  stage.init_stack = &init_stack_;
  stage.filter = filter_.data();
  stage.filter_length = static_cast<unsigned short>(filter_.size());
  stage.block = block_;
  stage.outer = slot.namespaces.outer.get();
  stage.network = slot.namespaces.network.get();
  stage.cgroup = slot.namespaces.cgroup.get();
  stage.agent_cgroup = slot.cgroups.agent.get();
  run_stage(stage, stager_stack_);
  // A clone that fails late, as that of a killed stager does, has written a number
  // that is no descriptor any more, or another thread's by now. The pid comes last.
  made.pidfd = sys::Fd(stage.pid > 0 ? stage.pidfd : -1);
  made.proc = sys::Fd(stage.proc);
  const sys::Fd terminals(stage.terminals), queues(stage.queues);
  // Our copies; the numbers stay taken.
  for (Place p : {Place::kControl, Place::kInner, Place::kMemoryTasks, Place::kCpuTasks, Place::kPidsTasks, Place::kPayload})
    ::dup3(node_.null.get(), block_ + static_cast<int>(p), O_CLOEXEC);
  // Each child was waited for, unless the stager was killed under it; PID 1's end takes the rest along.
  if (!stage.executing) {
    end_skeleton(std::move(made));
    return errno_error(stage.what ? stage.what : "the maker was killed", stage.error ? stage.error : EINTR);
  }

  made.pid = static_cast<std::uint32_t>(stage.pid);
  Result<void> furnished = furnish(slot, made, terminals, queues);
  if (furnished.ok()) {
    const auto identity = sys::process_identity(made.pidfd.get());
    if (identity.ok()) made.identity = *identity;
    else furnished = identity.error();
  }
  if (!furnished.ok()) {
    end_skeleton(std::move(made));
    return std::move(furnished).error();
  }
  return made;
}

void end_skeleton(Skeleton skeleton) {
  if (!skeleton) return;
  skeleton.control.reset();
  (void)sys::signal_process(skeleton.pidfd.get(), SIGKILL);
  if (!sys::wait_process(skeleton.pidfd.get(), Deadline::in(kEndPatience)).ok())
    log_warning("a skeleton does not end", {{"pid", std::to_string(skeleton.pid)}});
}

}  // namespace dsec::spawner
