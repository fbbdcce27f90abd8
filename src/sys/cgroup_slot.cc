// What is done with the cgroups of one slot: a sandbox's.
#include "sys/cgroup.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "sys/cgroup_files.h"
#include "sys/file.h"

namespace dsec::sys {

namespace {

constexpr std::uint32_t kCpuPeriodUsec = 100'000;

// The kernel asks for the right to write cgroup.procs of the target and of the
// nearest cgroup that source and target have in common.
Result<void> own_procs(int directory, const std::string& cgroup, unsigned owner) {
  const std::string file = cgroup + "/cgroup.procs";
  if (::fchownat(directory, file.c_str(), owner, owner, 0) < 0) return errno_error("own " + file, errno);
  return {};
}
}  // namespace

Result<void> CgroupTree::make_slot(const std::string& slot, unsigned owner) const {
  DSEC_TRY(make_dir(slots_.get(), slot));
  for (Controller controller : kControllers)
    if (driven_by_v2(controller))
      DSEC_TRY(write_at(slots_.get(), slot + "/cgroup.subtree_control", std::string("+") + to_string(controller)));
  DSEC_TRY(make_dir(slots_.get(), slot + "/agent"));
  DSEC_TRY(make_dir(slots_.get(), slot + "/payload"));
  for (const std::string& cgroup : {slot, slot + "/payload"}) DSEC_TRY(own_procs(slots_.get(), cgroup, owner));
  DSEC_ASSIGN(const Fd payload, open_payload(slot));
  DSEC_TRY(make_operation(payload.get(), kFirstOperation));
  for (Controller controller : kControllers)
    if (v1(controller) >= 0) DSEC_TRY(make_dir(v1(controller), slot));
  return {};
}

Result<void> CgroupTree::remove_slot(const std::string& slot) const {
  auto payload = open_payload(slot);
  if (payload) {
    for (const std::string& name : children(payload->get())) DSEC_TRY(remove_dir(payload->get(), name));
    DSEC_TRY(remove_dir(slots_.get(), slot + "/payload"));
  }
  DSEC_TRY(remove_dir(slots_.get(), slot + "/agent"));
  for (Controller controller : kControllers)
    if (v1(controller) >= 0) DSEC_TRY(remove_dir(v1(controller), slot));
  return remove_dir(slots_.get(), slot);
}

namespace {

// Removes every operation's cgroup but the first, and that too where it was ever
// killed; afterwards the first is there.
Result<void> renew_operations(int payload) {
  bool kept = false;
  {
    const Fd first(::openat(payload, CgroupTree::kFirstOperation, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    kept = first && ::fgetxattr(first.get(), kKilledMark, nullptr, 0) < 0 && errno == ENODATA;
  }
  struct stat of_payload {};
  // The links of a cgroup's directory: its own two, and one for each below.
  if (kept && ::fstat(payload, &of_payload) == 0 && of_payload.st_nlink == 3) return {};
  for (const std::string& name : children(payload))
    if (!kept || name != CgroupTree::kFirstOperation) DSEC_TRY(remove_dir(payload, name));
  if (!kept) DSEC_TRY(CgroupTree::make_operation(payload, CgroupTree::kFirstOperation));
  return {};
}

}  // namespace

Result<void> CgroupTree::renew_slot(const std::string& slot) const {
  // Linux 6.18 compares the kill count of the parent's cgroup with that of the
  // target: a clone3 into a cgroup that was ever killed dies at once.
  DSEC_ASSIGN(const Fd directory, open_dir(slots_.get(), slot));
  if (::fgetxattr(directory.get(), kKilledMark, nullptr, 0) >= 0) return Error(ErrorCode::kConflict, "cgroup " + slot + " was killed");
  DSEC_ASSIGN(Fd payload, open_payload(slot));
  DSEC_TRY(renew_operations(payload.get()));
  DSEC_TRY(write_at(payload.get(), "cgroup.freeze", "0"));
  if (v1(Controller::kMemory) >= 0) DSEC_TRY(write_at(v1(Controller::kMemory), slot + "/memory.max_usage_in_bytes", "0"));
  return {};
}

Result<SlotCgroups> CgroupTree::open_slot(const std::string& slot) const {
  SlotCgroups out;
  for (Controller controller : kControllers) {
    if (v1(controller) < 0) continue;
    DSEC_ASSIGN(out.v1_tasks[static_cast<std::size_t>(controller)], open_at(v1(controller), slot + "/tasks", O_WRONLY));
  }
  DSEC_ASSIGN(out.agent, open_dir(slots_.get(), slot + "/agent"));
  DSEC_ASSIGN(out.payload, open_dir(slots_.get(), slot + "/payload"));
  return out;
}

Result<Fd> CgroupTree::open_payload(const std::string& slot) const { return open_dir(slots_.get(), slot + "/payload"); }

Result<Fd> CgroupTree::make_operation(int payload, const std::string& name) {
  if (::mkdirat(payload, name.c_str(), 0755) < 0 && errno != EEXIST) return errno_error("make " + name, errno);
  struct stat of_payload {};
  if (::fstatat(payload, "cgroup.procs", &of_payload, 0) < 0) return errno_error("look at the payload's cgroup", errno);
  DSEC_TRY(own_procs(payload, name, of_payload.st_uid));
  return open_at(payload, name, O_RDONLY | O_DIRECTORY);
}

Result<void> CgroupTree::kill_operation(int operation) {
  if (::fsetxattr(operation, kKilledMark, "1", 1, 0) < 0) return errno_error("mark an operation's cgroup", errno);
  return write_at(operation, "cgroup.kill", "1");
}

Result<void> CgroupTree::limit(const std::string& slot, const CgroupLimits& limits) const {
  for (Controller controller : kControllers) {
    if (v1(controller) >= 0) DSEC_TRY(limit_v1(controller, slot, limits));
    if (driven_by_v2(controller)) DSEC_TRY(limit_v2(controller, slot, limits));
  }
  return {};
}

namespace {

// Memory and swap together have the one limit: what a pause moves to swap counts on, and a
// node's swap is nothing that a sandbox could fill instead. The limit of both may not be
// below that of memory at any time.
Result<void> limit_memory_v1(int dir, const std::string& slot, const std::string& limit) {
  const std::string both = slot + "/memory.memsw.limit_in_bytes";
  const bool counts_swap = ::faccessat(dir, both.c_str(), W_OK, 0) == 0;
  Result<void> first = write_at(dir, slot + "/memory.limit_in_bytes", limit);
  if (!counts_swap) return first;
  DSEC_TRY(write_at(dir, both, limit));
  return first.ok() ? Result<void>() : write_at(dir, slot + "/memory.limit_in_bytes", limit);
}

}  // namespace

Result<void> CgroupTree::limit_v1(Controller controller, const std::string& slot, const CgroupLimits& limits) const {
  const int dir = v1(controller);
  switch (controller) {
    case Controller::kMemory: return limit_memory_v1(dir, slot, limits.memory_bytes ? std::to_string(limits.memory_bytes) : "-1");
    case Controller::kCpu: {
      // cpu.shares cannot be written while cpu.idle is 1.
      DSEC_TRY(write_at(dir, slot + "/cpu.idle", "0"));
      DSEC_TRY(write_at(dir, slot + "/cpu.shares",
                        std::to_string(limits.cpu_millis ? std::max<std::uint64_t>(2, limits.cpu_millis * 1024ull / 1000) : 1024)));
      if (limits.batch) DSEC_TRY(write_at(dir, slot + "/cpu.idle", "1"));
      return write_at(dir, slot + "/cpu.cfs_quota_us",
                      limits.cpu_millis ? std::to_string(limits.cpu_millis * std::uint64_t{kCpuPeriodUsec} / 1000) : "-1");
    }
    case Controller::kPids:
      return write_at(dir, slot + "/pids.max", limits.processes ? std::to_string(limits.processes) : "max");
  }
  return {};
}

Result<void> CgroupTree::limit_v2(Controller controller, const std::string& slot, const CgroupLimits& limits) const {
  const std::string payload = slot + "/payload/";
  const int dir = slots_.get();
  switch (controller) {
    case Controller::kMemory:
      DSEC_TRY(write_at(dir, payload + "memory.max", limits.memory_bytes ? std::to_string(limits.memory_bytes) : "max"));
      return allow_swap(slot, false);
    case Controller::kCpu: {
      DSEC_TRY(write_at(dir, payload + "cpu.idle", limits.batch ? "1" : "0"));
      const std::string period = " " + std::to_string(kCpuPeriodUsec);
      return write_at(dir, payload + "cpu.max",
                      (limits.cpu_millis ? std::to_string(limits.cpu_millis * std::uint64_t{kCpuPeriodUsec} / 1000) : "max") + period);
    }
    case Controller::kPids:
      return write_at(dir, payload + "pids.max", limits.processes ? std::to_string(limits.processes) : "max");
  }
  return {};
}

Result<std::uint64_t> CgroupTree::oom_kills(const std::string& slot) const {
  if (v1(Controller::kMemory) >= 0) {
    DSEC_ASSIGN(const std::string text, read_file_at(v1(Controller::kMemory), slot + "/memory.oom_control"));
    return cgroup_field(text, "oom_kill");
  }
  if (driven_by_v2(Controller::kMemory)) {
    DSEC_ASSIGN(const std::string text, read_file_at(slots_.get(), slot + "/payload/memory.events"));
    return cgroup_field(text, "oom_kill");
  }
  return std::uint64_t{0};
}

Result<CgroupUsage> CgroupTree::usage(const std::string& slot) const {
  CgroupUsage out;
  DSEC_ASSIGN(const Fd payload, open_payload(slot));
  out.cpu_usec = read_field(payload.get(), "cpu.stat", "usage_usec");
  std::uint64_t throttled = 0;
  std::uint64_t droppable = 0;
  if (const int memory = v1(Controller::kMemory); memory >= 0) {
    out.memory_bytes = read_number(memory, slot + "/memory.usage_in_bytes");
    out.memory_peak_bytes = read_number(memory, slot + "/memory.max_usage_in_bytes");
    droppable = read_field(memory, slot + "/memory.stat", "total_inactive_file");
  } else if (driven_by_v2(Controller::kMemory)) {
    out.memory_bytes = read_number(payload.get(), "memory.current");
    out.memory_peak_bytes = read_number(payload.get(), "memory.peak");
    droppable = read_field(payload.get(), "memory.stat", "inactive_file");
  }
  out.memory_bytes -= std::min(out.memory_bytes, droppable);
  if (const int pids = v1(Controller::kPids); pids >= 0)
    out.processes = read_number(pids, slot + "/pids.current");
  else if (driven_by_v2(Controller::kPids))
    out.processes = read_number(payload.get(), "pids.current");
  if (const int cpu = v1(Controller::kCpu); cpu >= 0)
    throttled = read_field(cpu, slot + "/cpu.stat", "throttled_time") / 1000;
  else if (driven_by_v2(Controller::kCpu))
    throttled = read_field(payload.get(), "cpu.stat", "throttled_usec");
  DSEC_ASSIGN(out.oom_kills, oom_kills(slot));
  // Waiting for a CPU that its own quota withheld is not the platform's stall.
  const std::uint64_t cpu_stall = full_stall(payload.get(), "cpu.pressure");
  out.stalled_usec = cpu_stall - std::min(cpu_stall, throttled) + full_stall(payload.get(), "io.pressure");
  return out;
}

bool CgroupTree::populated(const std::string& slot) const {
  return read_field(slots_.get(), slot + "/cgroup.events", "populated") != 0;
}

bool CgroupTree::any_in_use() const {
  if (read_field(slots_.get(), "cgroup.events", "populated") == 0) return false;
  const std::vector<std::string> names = children(slots_.get());
  return std::any_of(names.begin(), names.end(), [this](const std::string& slot) { return populated(slot) && !idle(slot); });
}

Result<void> CgroupTree::set_idle(const std::string& slot, bool idle) const {
  DSEC_ASSIGN(const Fd directory, open_dir(slots_.get(), slot));
  const int done = idle ? ::fsetxattr(directory.get(), kIdleMark, "1", 1, 0) : ::fremovexattr(directory.get(), kIdleMark);
  if (done < 0 && (idle || errno != ENODATA)) return errno_error("mark cgroup " + slot, errno);
  return {};
}

bool CgroupTree::idle(const std::string& slot) const {
  const auto directory = open_dir(slots_.get(), slot);
  return directory.ok() && ::fgetxattr(directory->get(), kIdleMark, nullptr, 0) >= 0;
}

Result<void> CgroupTree::kill(const std::string& slot) const {
  DSEC_ASSIGN(const Fd directory, open_dir(slots_.get(), slot));
  if (::fsetxattr(directory.get(), kKilledMark, "1", 1, 0) < 0) return errno_error("mark cgroup " + slot, errno);
  return write_at(slots_.get(), slot + "/cgroup.kill", "1");
}

Result<void> CgroupTree::freeze_payload(const std::string& slot, bool frozen) const {
  return write_at(slots_.get(), slot + "/payload/cgroup.freeze", frozen ? "1" : "0");
}

bool CgroupTree::payload_frozen(const std::string& slot) const {
  return read_field(slots_.get(), slot + "/payload/cgroup.events", "frozen") != 0;
}

// The kernel wakes POLLPRI waiters of an events file when a value in it changes.
Result<void> CgroupTree::wait_event(const std::string& path, std::string_view key, bool value, Deadline deadline) const {
  auto opened = open_at(slots_.get(), path, O_RDONLY);
  if (!opened) {
    if (opened.error().error_number() == ENOENT && !value) return {};
    return std::move(opened).error();
  }
  for (;;) {
    char text[256];
    const ssize_t n = ::pread(opened->get(), text, sizeof text, 0);
    if (n < 0) return errno == ENODEV && !value ? Result<void>() : errno_error("read " + path, errno);
    if ((cgroup_field(std::string_view(text, static_cast<std::size_t>(n)), key) != 0) == value) return {};
    pollfd events{opened->get(), POLLPRI, 0};
    const int ready = ::poll(&events, 1, deadline.left_ms());
    if (ready < 0 && errno != EINTR) return errno_error("poll " + path, errno);
    if (ready == 0) return Error(ErrorCode::kDeadlineExceeded, path + ": " + std::string(key) + " has not changed");
  }
}

Result<void> CgroupTree::wait_empty(const std::string& slot, Deadline deadline) const {
  return wait_event(slot + "/cgroup.events", "populated", false, deadline);
}

Result<void> CgroupTree::wait_frozen(const std::string& slot, bool frozen, Deadline deadline) const {
  return wait_event(slot + "/payload/cgroup.events", "frozen", frozen, deadline);
}

Result<std::vector<int>> CgroupTree::agent_pids(const std::string& slot) const {
  DSEC_ASSIGN(const std::string text, read_file_at(slots_.get(), slot + "/agent/cgroup.procs"));
  std::vector<int> pids;
  for (std::size_t at = 0; at < text.size();) {
    pids.push_back(static_cast<int>(number(std::string_view(text).substr(at))));
    const std::size_t end = text.find('\n', at);
    at = end == std::string::npos ? text.size() : end + 1;
  }
  return pids;
}

}  // namespace dsec::sys
