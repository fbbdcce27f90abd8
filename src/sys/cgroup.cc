#include "sys/cgroup.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/crc32c.h"
#include "sys/cgroup_files.h"
#include "sys/file.h"

namespace dsec::sys {

namespace {

constexpr long kCgroupV1Magic = 0x27e0eb;
constexpr long kCgroupV2Magic = 0x63677270;
// Agents and the spawner are few and short of work; a payload never starves them.
constexpr const char* kAgentShares = "262144";

long filesystem_magic(const std::string& path) {
  struct statfs s {};
  return ::statfs(path.c_str(), &s) == 0 ? static_cast<long>(s.f_type) : 0;
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
