#include "backend/container/container_backend.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>

#include "backend/greeting.h"
#include "base/encoding.h"
#include "base/fail_point.h"
#include "base/log.h"
#include "base/random.h"
#include "sys/file.h"
#include "sys/process.h"

namespace dsec::backend::container {

namespace {

thread_local std::array<std::uint32_t, protocol::kLaunchSteps> step_nsec_of_thread{};
constexpr auto kSweepPatience = std::chrono::seconds(20);
constexpr std::size_t kSocketNameBytes = 10;

ErrorCode code_of(const protocol::LaunchReply& reply) {
  switch (reply.step) {
    case protocol::LaunchStep::kSlot:
      return reply.error_number == 0 ? ErrorCode::kExhausted : ErrorCode::kInternal;
    case protocol::LaunchStep::kRoot: {
      // The image has something else where /dev, /sys or /proc belongs.
      constexpr int kOfTheImage[] = {ELOOP, ENOTDIR, EINVAL, EEXIST};
      const bool image = std::find(std::begin(kOfTheImage), std::end(kOfTheImage), reply.error_number) != std::end(kOfTheImage);
      return image ? ErrorCode::kInvalidArgument : ErrorCode::kInternal;
    }
    default:
      return ErrorCode::kInternal;
  }
}

std::string text_of(const protocol::LaunchReply& reply) {
  std::string text = std::string("launch step ") + protocol::to_string(reply.step) + ": " + reply.message;
  if (reply.error_number != 0) text += ": " + errno_error("", reply.error_number).message();
  return text;
}

}  // namespace

Result<std::unique_ptr<ContainerBackend>> ContainerBackend::create(const Options& options) {
  sys::CgroupHost host = sys::CgroupHost::detect();
  if (!options.use_v1) host = host.without_v1();
  DSEC_ASSIGN(sys::CgroupTree tree, sys::CgroupTree::create(host, sys::cgroup_name(options.data_dir)));
  auto shared = std::make_shared<Shared>(std::move(tree), options.data_dir + "/run/spawner.sock");
  shared->agent_dir = options.data_dir + "/run/a";
  DSEC_TRY(sys::make_directories(shared->agent_dir, 0700));
  DSEC_ASSIGN(shared->home_network, sys::open_at(AT_FDCWD, "/proc/thread-self/ns/net", O_RDONLY));
  DSEC_ASSIGN(std::string boot_id, sys::read_file("/proc/sys/kernel/random/boot_id"));
  return std::unique_ptr<ContainerBackend>(new ContainerBackend(std::move(shared), std::move(host), std::move(boot_id)));
}

Capabilities ContainerBackend::capabilities() const {
  Capabilities out;
  out.name = "container";
  out.available = ::geteuid() == 0 && !host_.unified.empty();
  if (::geteuid() != 0) out.reason = "needs root";
  else if (host_.unified.empty()) out.reason = "no cgroup v2 tree is mounted";
  for (sys::Controller controller : sys::kControllers) {
    const auto version = host_.controllers[static_cast<std::size_t>(controller)].version;
    const char* how = version == sys::CgroupHost::Version::kV1   ? "cgroup v1"
                      : version == sys::CgroupHost::Version::kV2 ? "cgroup v2"
                                                                 : "not available: no limit";
    out.notes.push_back(std::string(sys::to_string(controller)) + ": " + how);
  }
  return out;
}

const std::array<std::uint32_t, protocol::kLaunchSteps>& ContainerBackend::last_step_nsec() { return step_nsec_of_thread; }

Result<sys::Fd> ContainerBackend::listen_for_agent(std::string* name) {
  *name = to_base32(SystemRandom().bytes(kSocketNameBytes)) + ".sock";
  return sys::listen_unix(shared_->agent_dir + "/" + *name, SOCK_STREAM);
}

Result<LaunchResult> ContainerBackend::ask_spawner(const protocol::LaunchRequest& request, const Rootfs& rootfs,
                                                   const std::string& greeting, Record& record, Deadline deadline) {
  const std::shared_lock lock(launching_);
  DSEC_ASSIGN(const sys::Fd listener, listen_for_agent(&record.socket_name));
  std::vector<int> fds = {listener.get()};
  for (const LayerMount& layer : rootfs.layers) fds.push_back(layer.fd);
  if (request.upper == protocol::UpperKind::kDirectory) fds.push_back(rootfs.upper.directory_fd);
  const std::string path = shared_->agent_dir + "/" + record.socket_name;
  Result<sys::Fd> greeted = greeting.empty() ? sys::Fd() : connect_and_greet(path, greeting);
  auto result = greeted.ok() ? shared_->spawner.launch(request, fds, deadline) : Result<LaunchResult>(greeted.error());
  if (result.ok() && result->reply.launched) {
    result->greeted = std::move(*greeted);
    record.slot = result->reply.slot;
    record.generation = result->reply.generation;
    shared_->know(record);
  } else {
    ::unlink(path.c_str());
  }
  return result;
}

Result<std::unique_ptr<Instance>> ContainerBackend::launch(const LaunchSpec& spec, const Rootfs& rootfs, Deadline deadline) {
  if (rootfs.layers.empty() || rootfs.layers.size() > protocol::kMaxLaunchLayers) return invalid_argument("a sandbox has 1 to 64 layers");
  DSEC_TRY(fail_point("container.launch"));
  protocol::LaunchRequest request;
  request.hostname = spec.hostname.empty() ? spec.id.substr(0, 63) : spec.hostname;
  request.memory_bytes = static_cast<std::uint64_t>(spec.resources.memory_mb) << 20;
  request.cpu_millis = static_cast<std::uint32_t>(spec.resources.cpu_cores * 1000);
  request.processes = static_cast<std::uint64_t>(spec.resources.max_processes);
  request.batch = spec.priority == model::Priority::kBatch;
  request.upper = rootfs.upper.kind == WritableLayer::Kind::kTmpfs ? protocol::UpperKind::kTmpfs : protocol::UpperKind::kDirectory;
  request.upper_bytes = rootfs.upper.limit_bytes;
  request.layers = static_cast<std::uint32_t>(rootfs.layers.size());
  request.etc_files = spec.etc_files;

  Record record;
  record.boot_id = boot_id_;
  auto launched = ask_spawner(request, rootfs, spec.greeting, record, deadline);
  // The spawner died over it. Once nothing of it can be left, the next one may try.
  if (!launched.ok() && end_orphans(deadline)) launched = ask_spawner(request, rootfs, spec.greeting, record, deadline);
  if (!launched.ok()) {
    (void)end_orphans(deadline);
    return std::move(launched).error();
  }
  if (!launched->reply.launched) return Error(code_of(launched->reply), text_of(launched->reply), launched->reply.error_number);
  step_nsec_of_thread = launched->reply.step_nsec;
  record.pid = launched->reply.pid;
  record.identity = launched->reply.identity;
  record.oom_kills = launched->reply.oom_kills;
  record.first_id = launched->reply.first_id;
  record.upper_handle = launched->reply.upper_handle;
  return std::unique_ptr<Instance>(
      std::make_unique<ContainerInstance>(shared_, std::move(record), std::move(launched->pidfd), ContainerInstance::Origin::kLaunched,
                                          std::move(launched->greeted)));
}

Result<std::unique_ptr<Instance>> ContainerBackend::adopt(const std::string& bytes) {
  DSEC_ASSIGN(Record record, decode_record(bytes));
  auto pidfd = record.boot_id == boot_id_ ? sys::open_pidfd(static_cast<pid_t>(record.pid)) : Error(ErrorCode::kNotFound, "another boot");
  if (pidfd.ok()) {
    const auto identity = sys::process_identity(pidfd->get());
    if (identity.ok() && *identity == record.identity && !sys::process_ended(pidfd->get())) {
      shared_->know(record);
      return std::unique_ptr<Instance>(
          std::make_unique<ContainerInstance>(shared_, std::move(record), std::move(*pidfd), ContainerInstance::Origin::kAdopted));
    }
  }
  ::unlink((shared_->agent_dir + "/" + record.socket_name).c_str());
  // Names a slot with its generation: one that is another sandbox's by now is left alone.
  if (record.boot_id == boot_id_) (void)shared_->spawner.release({record.slot, record.generation}, Deadline::in(kSweepPatience));
  return Error(ErrorCode::kNotFound, "the sandbox is not running any more");
}

Result<std::size_t> ContainerBackend::end_unknown(Deadline deadline) {
  std::map<std::string, Shared::Known> keep;
  {
    const std::lock_guard guard(shared_->mutex);
    keep = shared_->known;
  }
  std::size_t ended = 0;
  // Others are free or in the making, and then not empty either. A spawner counts
  // as used whatever an earlier one left with a process in it.
  DSEC_ASSIGN(const protocol::StatusReply status, shared_->spawner.status(deadline));
  for (const std::string& slot : status.used_slots) {
    if (keep.contains(slot)) continue;
    if (shared_->cgroups.populated(slot)) {
      log_info("a container that no sandbox has is ended", {{"slot", slot}});
      DSEC_TRY(shared_->cgroups.kill(slot));
      DSEC_TRY(shared_->cgroups.wait_empty(slot, deadline).within("sweep " + slot));
      ++ended;
    }
    DSEC_TRY(shared_->spawner.release({slot, 0}, deadline));
  }
  return ended;
}

bool ContainerBackend::end_orphans(Deadline deadline) {
  const std::unique_lock lock(launching_);
  if (!swept_.load()) return false;  // sweep() will
  const auto ended = end_unknown(deadline);
  if (!ended.ok()) log_error("orphans of a dead spawner may be left", {{"error", ended.error().message()}});
  return ended.ok();
}

Result<std::size_t> ContainerBackend::sweep(const std::vector<std::string>& records) {
  const std::unique_lock lock(launching_);
  const Deadline deadline = Deadline::in(kSweepPatience);
  for (const std::string& bytes : records) {
    DSEC_ASSIGN(const Record record, decode_record(bytes));
    const auto pidfd = sys::open_pidfd(static_cast<pid_t>(record.pid));
    if (!pidfd.ok() || record.boot_id != boot_id_) continue;
    const auto identity = sys::process_identity(pidfd->get());
    if (!identity.ok() || *identity != record.identity) continue;
    shared_->know(record);
  }
  // What was launched since this process started is known as well: a sweep goes on beside the first creates.
  std::set<std::string> sockets;
  {
    const std::lock_guard guard(shared_->mutex);
    for (const auto& [slot, known] : shared_->known) sockets.insert(known.socket_name);
  }
  DSEC_ASSIGN(std::size_t removed, end_unknown(deadline));
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(shared_->agent_dir, ignored)) {
    if (sockets.contains(entry.path().filename().string())) continue;
    if (::unlink(entry.path().c_str()) == 0) ++removed;
  }
  swept_.store(true);
  return removed;
}

}  // namespace dsec::backend::container
