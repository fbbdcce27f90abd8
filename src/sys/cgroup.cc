#include "sys/cgroup.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "base/crc32c.h"
#include "sys/file.h"

namespace dsec::sys {

namespace {

constexpr long kCgroupV1Magic = 0x27e0eb;
constexpr long kCgroupV2Magic = 0x63677270;
constexpr std::uint32_t kCpuPeriodUsec = 100'000;
// Agents and the spawner are few and short of work; a payload never starves them.
constexpr const char* kAgentShares = "262144";
constexpr const char* kKilledMark = "trusted.dsec.killed";
constexpr const char* kIdleMark = "trusted.dsec.idle";

long filesystem_magic(const std::string& path) {
  struct statfs s {};
  return ::statfs(path.c_str(), &s) == 0 ? static_cast<long>(s.f_type) : 0;
}

Result<void> make_dir(int dir, const std::string& name) {
  if (::mkdirat(dir, name.c_str(), 0755) < 0 && errno != EEXIST) return errno_error("mkdir cgroup " + name, errno);
  return {};
}

Result<void> remove_dir(int dir, const std::string& name) {
  if (::unlinkat(dir, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return {};
  if (errno == EBUSY || errno == ENOTEMPTY)
    return Error(ErrorCode::kConflict, "cgroup " + name + " is in use", EBUSY);
  return errno_error("rmdir cgroup " + name, errno);
}

Result<Fd> open_dir(int dir, const std::string& name) { return open_at(dir, name, O_RDONLY | O_DIRECTORY); }

std::vector<std::string> children(int dir) {
  std::vector<std::string> names;
  Fd copy(::openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!copy) return names;
  DIR* stream = ::fdopendir(copy.get());
  if (!stream) return names;
  copy.release();
  while (const dirent* entry = ::readdir(stream))
    if (entry->d_type == DT_DIR && entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  ::closedir(stream);
  return names;
}

std::uint64_t number(std::string_view text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::uint64_t read_number(int dir, const std::string& path) {
  const auto text = read_file_at(dir, path);
  return text ? number(*text) : 0;
}

std::uint64_t read_field(int dir, const std::string& path, std::string_view key) {
  const auto text = read_file_at(dir, path);
  return text ? cgroup_field(*text, key) : 0;
}

// total= of the "full" line of a pressure file.
std::uint64_t full_stall(int dir, const std::string& path) {
  const auto text = read_file_at(dir, path);
  if (!text) return 0;
  const std::size_t line = text->find("full ");
  if (line == std::string::npos) return 0;
  const std::size_t total = text->find("total=", line);
  return total == std::string::npos ? 0 : number(std::string_view(*text).substr(total + 6));
}

}  // namespace

const char* to_string(Controller controller) {
  switch (controller) {
    case Controller::kMemory: return "memory";
    case Controller::kCpu: return "cpu";
    case Controller::kPids: return "pids";
  }
  return "";
}

std::string cgroup_name(const std::string& data_dir) {
  std::error_code ignored;
  const std::string path = std::filesystem::weakly_canonical(data_dir, ignored).string();
  char name[16];
  std::snprintf(name, sizeof name, "dsec-%08x", crc32c(path));
  return name;
}

std::uint64_t cgroup_field(std::string_view text, std::string_view key) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::string_view line = text.substr(at, text.find('\n', at) - at);
    if (line.size() > key.size() && line.starts_with(key) && line[key.size()] == ' ')
      return number(line.substr(key.size() + 1));
    at += line.size() + 1;
  }
  return 0;
}

CgroupHost CgroupHost::detect(const std::string& root) {
  CgroupHost host;
  for (const std::string& path : {root, root + "/unified"})
    if (host.unified.empty() && filesystem_magic(path) == kCgroupV2Magic) host.unified = path;
  std::string offered;
  if (!host.unified.empty())
    if (auto text = read_file(host.unified + "/cgroup.controllers")) offered = " " + *text;
  std::replace(offered.begin(), offered.end(), '\n', ' ');
  for (Controller controller : kControllers) {
    Drive& drive = host.controllers[static_cast<std::size_t>(controller)];
    const std::string mount = root + "/" + to_string(controller);
    if (filesystem_magic(mount) == kCgroupV1Magic)
      drive = {.version = Version::kV1, .v1_mount = mount};
    else if (offered.find(std::string(" ") + to_string(controller) + " ") != std::string::npos)
      drive = {.version = Version::kV2, .v1_mount = {}};
  }
  return host;
}

CgroupHost CgroupHost::without_v1() const {
  CgroupHost host = *this;
  for (Drive& drive : host.controllers)
    if (drive.version == Version::kV1) drive = {};
  return host;
}

namespace {

constexpr int kLockAttempts = 100;

// The directory `name` of the v2 root, made where missing and locked. kConflict
// when somebody else has it (LOCK_EX | LOCK_NB).
Result<Fd> hold(int root, const std::string& name, int lock) {
  for (int attempt = 0; attempt < kLockAttempts; ++attempt) {
    DSEC_TRY(make_dir(root, name));
    Fd held(::openat(root, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!held && errno == ENOENT) continue;
    if (!held) return errno_error("open cgroup " + name, errno);
    while (::flock(held.get(), lock) < 0) {
      if (errno == EWOULDBLOCK) return Error(ErrorCode::kConflict, "cgroup " + name + " is in use", EBUSY);
      if (errno != EINTR) return errno_error("lock cgroup " + name, errno);
    }
    // Removed by a sweep between the two lines above: it is made again.
    struct stat ours {}, named {};
    if (::fstat(held.get(), &ours) == 0 && ::fstatat(root, name.c_str(), &named, 0) == 0 && ours.st_ino == named.st_ino) return held;
  }
  return Error(ErrorCode::kUnavailable, "cgroup " + name + " is removed again and again");
}

std::vector<std::string> mounts_of(const CgroupHost& host) {
  std::vector<std::string> mounts = {host.unified};
  for (const CgroupHost::Drive& drive : host.controllers)
    if (drive.version == CgroupHost::Version::kV1) mounts.push_back(drive.v1_mount);
  return mounts;
}

// One that cgroup_name() makes.
bool names_a_node(const std::string& name) {
  return name.size() == 13 && name.starts_with("dsec-") && name.find_first_not_of("0123456789abcdef", 5) == std::string::npos;
}

}  // namespace

Result<CgroupTree> CgroupTree::create(const CgroupHost& host, const std::string& name) {
  if (host.unified.empty()) return Error(ErrorCode::kUnsupported, "no cgroup v2 tree is mounted");
  DSEC_ASSIGN(Fd root, open_dir(AT_FDCWD, host.unified));
  DSEC_ASSIGN(Fd held, hold(root.get(), name, LOCK_SH));
  return fill(host, name, std::move(root), std::move(held));
}

Result<CgroupTree> CgroupTree::fill(const CgroupHost& host, const std::string& name, Fd root, Fd held) {
  CgroupTree tree;
  tree.unified_ = std::move(held);
  DSEC_TRY(make_dir(tree.unified_.get(), "keeper"));
  DSEC_TRY(make_dir(tree.unified_.get(), "slots"));
  DSEC_ASSIGN(tree.slots_, open_dir(tree.unified_.get(), "slots"));
  for (Controller controller : kControllers) {
    const std::size_t i = static_cast<std::size_t>(controller);
    const CgroupHost::Drive& drive = host.controllers[i];
    if (drive.version == CgroupHost::Version::kV2) {
      const std::string enable = std::string("+") + to_string(controller);
      for (int dir : {root.get(), tree.unified_.get(), tree.slots_.get()})
        DSEC_TRY(write_at(dir, "cgroup.subtree_control", enable));
      tree.v2_[i] = true;
    }
    if (drive.version != CgroupHost::Version::kV1) continue;
    DSEC_ASSIGN(Fd hierarchy, open_dir(AT_FDCWD, drive.v1_mount));
    DSEC_TRY(make_dir(hierarchy.get(), name));
    DSEC_ASSIGN(tree.v1_[i], open_dir(hierarchy.get(), name));
    DSEC_TRY(make_dir(tree.v1_[i].get(), "agents"));
  }
  return tree;
}

Result<void> CgroupTree::join_agents() const {
  for (Controller controller : kControllers) {
    if (v1(controller) < 0) continue;
    if (controller == Controller::kCpu) DSEC_TRY(write_at(v1(controller), "agents/cpu.shares", kAgentShares));
    DSEC_TRY(write_at(v1(controller), "agents/cgroup.procs", "0"));
  }
  return write_at(unified_.get(), "keeper/cgroup.procs", "0");
}

namespace {
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

Result<std::vector<std::string>> CgroupTree::slots() const {
  std::vector<std::string> names = children(slots_.get());
  // A crash between two mkdirs leaves a name in a v1 hierarchy alone.
  for (Controller controller : kControllers) {
    if (v1(controller) < 0) continue;
    for (std::string& name : children(v1(controller)))
      if (name != "agents" && std::find(names.begin(), names.end(), name) == names.end())
        names.push_back(std::move(name));
  }
  return names;
}

Result<void> CgroupTree::limit(const std::string& slot, const CgroupLimits& limits) const {
  for (Controller controller : kControllers) {
    if (v1(controller) >= 0) DSEC_TRY(limit_v1(controller, slot, limits));
    if (driven_by_v2(controller)) DSEC_TRY(limit_v2(controller, slot, limits));
  }
  return {};
}

Result<void> CgroupTree::limit_v1(Controller controller, const std::string& slot, const CgroupLimits& limits) const {
  const int dir = v1(controller);
  switch (controller) {
    case Controller::kMemory:
      return write_at(dir, slot + "/memory.limit_in_bytes",
                      limits.memory_bytes ? std::to_string(limits.memory_bytes) : "-1");
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
      return write_at(dir, payload + "memory.max", limits.memory_bytes ? std::to_string(limits.memory_bytes) : "max");
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

Result<void> CgroupTree::remove(const CgroupHost& host, const std::string& name) {
  DSEC_ASSIGN(const CgroupTree tree, create(host, name));
  return remove_held(host, name, tree);
}

Result<void> CgroupTree::remove_abandoned(const CgroupHost& host, const std::string& name) {
  DSEC_ASSIGN(Fd root, open_dir(AT_FDCWD, host.unified));
  DSEC_ASSIGN(Fd held, hold(root.get(), name, LOCK_EX | LOCK_NB));
  if (read_field(held.get(), "cgroup.events", "populated") != 0) return Error(ErrorCode::kConflict, "a process is left in cgroup " + name, EBUSY);
  DSEC_ASSIGN(const CgroupTree tree, fill(host, name, std::move(root), std::move(held)));
  return remove_held(host, name, tree);
}

Result<void> CgroupTree::remove_held(const CgroupHost& host, const std::string& name, const CgroupTree& tree) {
  DSEC_ASSIGN(const std::vector<std::string> slots, tree.slots());
  for (const std::string& slot : slots) DSEC_TRY(tree.remove_slot(slot));
  DSEC_TRY(remove_dir(tree.unified_.get(), "slots"));
  DSEC_TRY(remove_dir(tree.unified_.get(), "keeper"));
  for (Controller controller : kControllers)
    if (tree.v1(controller) >= 0) DSEC_TRY(remove_dir(tree.v1(controller), "agents"));
  // The locked one last: without it nobody can tell whose the others are.
  std::vector<std::string> mounts = mounts_of(host);
  std::reverse(mounts.begin(), mounts.end());
  for (const std::string& mount : mounts) {
    DSEC_ASSIGN(const Fd root, open_dir(AT_FDCWD, mount));
    DSEC_TRY(remove_dir(root.get(), name));
  }
  return {};
}

std::vector<AbandonedCgroups> CgroupTree::abandoned(const CgroupHost& host) {
  std::vector<AbandonedCgroups> found;
  if (host.unified.empty()) return found;
  for (const std::string& mount : mounts_of(host)) {
    const Fd root(::open(mount.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!root) continue;
    for (const std::string& name : children(root.get())) {
      if (!names_a_node(name)) continue;
      if (std::any_of(found.begin(), found.end(), [&](const AbandonedCgroups& known) { return known.name == name; })) continue;
      // A name in a v1 hierarchy alone is what a removal has left that was cut.
      const Fd held(::open((host.unified + "/" + name).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      if (held && ::flock(held.get(), LOCK_EX | LOCK_NB) < 0) continue;
      found.push_back({name, held && read_field(held.get(), "cgroup.events", "populated") != 0});
    }
  }
  return found;
}

}  // namespace dsec::sys
