// The cgroups of one node, behind one class: v1-hybrid and v2 alike.
//
//   <v1 memory|cpu|pids>/<name>/agents            the spawner and every aether
//   <v1 memory|cpu|pids>/<name>/<slot>            one sandbox's payload, limited
//   <v2>/<name>/keeper                            the keeper and the spawner
//   <v2>/<name>/slots/<slot>/agent                aether
//   <v2>/<name>/slots/<slot>/payload/op-<id>      the payload; one child an operation
//
// Freeze, kill, population and CPU time always come from the v2 tree, which a
// hybrid host has without controllers. A controller is driven where the host
// has it: in its v1 hierarchy, in the v2 tree, or nowhere. Nothing outside
// <name> is ever changed, except that a v2 host's root delegates controllers.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "sys/fd.h"

namespace dsec::sys {

enum class Controller : std::uint8_t { kMemory, kCpu, kPids };
inline constexpr std::array<Controller, 3> kControllers = {Controller::kMemory, Controller::kCpu, Controller::kPids};
const char* to_string(Controller controller);

// What this host offers.
struct CgroupHost {
  enum class Version : std::uint8_t { kNone, kV1, kV2 };
  struct Drive {
    Version version = Version::kNone;
    std::string v1_mount;  // kV1 only
  };
  std::string unified;  // where the v2 tree is mounted; "" = nowhere
  std::array<Drive, 3> controllers;  // by Controller

  // Reads what is mounted below `root`.
  static CgroupHost detect(const std::string& root = "/sys/fs/cgroup");
  CgroupHost without_v1() const;
  bool has(Controller controller) const {
    return controllers[static_cast<std::size_t>(controller)].version != Version::kNone;
  }
};

struct CgroupLimits {
  std::uint64_t memory_bytes = 0;  // 0 = none, in all three
  std::uint32_t cpu_millis = 0;    // thousandths of a core
  std::uint64_t processes = 0;
  bool batch = false;  // runs only where nobody else wants the CPU
  bool operator==(const CgroupLimits&) const = default;
};

struct CgroupUsage {
  std::uint64_t cpu_usec = 0;
  std::uint64_t memory_bytes = 0;  // without page cache that can be dropped
  std::uint64_t memory_peak_bytes = 0;
  std::uint64_t processes = 0;
  std::uint64_t oom_kills = 0;
  std::uint64_t stalled_usec = 0;
};

struct CgroupMemory {
  std::uint64_t bytes = 0;  // with page cache
  std::uint64_t swapped_bytes = 0;
  std::uint64_t inactive_file_bytes = 0;  // of those, what can be dropped at once
  std::uint64_t stalled_usec = 0;         // in which all its tasks waited for memory
};

// Descriptors by which processes are put into a slot's payload and agent.
struct SlotCgroups {
  std::array<Fd, 3> v1_tasks;  // write-only, by Controller; invalid where not driven by v1
  Fd agent;                    // v2 directories
  Fd payload;
};

// The <name> of a data directory, so that nodes of one host keep apart.
std::string cgroup_name(const std::string& data_dir);

// A node's tree that no process of the node holds any more.
struct AbandonedCgroups {
  std::string name;
  bool populated = false;  // sandboxes run on in it
};

// Safe on any thread: holds descriptors only.
//
// Whoever has a tree holds a shared lock on the directory <name>, which goes with
// the process: what a dead node left can be told from what a living one uses.
class CgroupTree {
 public:
  // Makes <name> and its inner directories where missing.
  static Result<CgroupTree> create(const CgroupHost& host, const std::string& name);

  // Moves the calling process into `agents` (v1) and `keeper` (v2).
  Result<void> join_agents() const;

  // `owner` (a host id) may put its children into the slot's payload.
  Result<void> make_slot(const std::string& slot, unsigned owner) const;
  // kConflict while a process is left in it; ok when it is gone already.
  Result<void> remove_slot(const std::string& slot) const;
  // Removes what operations left and forgets peaks, so that another sandbox may use the
  // slot. The first operation's cgroup stays, unless it was ever killed.
  // kConflict when kill() was called on it: such a slot has to be removed and made again.
  Result<void> renew_slot(const std::string& slot) const;
  Result<SlotCgroups> open_slot(const std::string& slot) const;
  Result<Fd> open_payload(const std::string& slot) const;
  // A cgroup below the payload's, for one command; one that exists is opened. Its
  // owner is the payload's.
  static Result<Fd> make_operation(int payload, const std::string& name);
  // Ends all in an operation's cgroup and marks it: nothing is ever born there again.
  static Result<void> kill_operation(int operation);
  // Made with the slot: by this name in its payload's cgroup.
  static constexpr const char* kFirstOperation = "op-first";
  Result<std::vector<std::string>> slots() const;

  Result<void> limit(const std::string& slot, const CgroupLimits& limits) const;
  Result<CgroupUsage> usage(const std::string& slot) const;
  Result<std::uint64_t> oom_kills(const std::string& slot) const;
  // Any process in agent or payload; false for a slot that is gone.
  bool populated(const std::string& slot) const;
  Result<void> kill(const std::string& slot) const;  // agent and payload
  // An idle slot is the spawner's own: what is in it belongs to no sandbox yet.
  Result<void> set_idle(const std::string& slot, bool idle) const;
  bool idle(const std::string& slot) const;
  Result<void> freeze_payload(const std::string& slot, bool frozen) const;
  bool payload_frozen(const std::string& slot) const;
  // All of the payload's processes, those of its operations too.
  Result<std::vector<int>> payload_pids(const std::string& slot) const;
  Result<CgroupMemory> memory(const std::string& slot) const;
  // Only what is paused goes to swap where the two are counted apart (v2); where they have
  // one limit together (v1) there is nothing to do.
  Result<void> allow_swap(const std::string& slot, bool allowed) const;
  // Gives back what the payload's cgroup holds, until nothing more goes or `cancelled`
  // becomes true (kCancelled). kUnsupported where no controller counts memory.
  Result<void> reclaim(const std::string& slot, const std::atomic<bool>& cancelled, Deadline deadline) const;
  // Returns when no process is left in the slot.
  Result<void> wait_empty(const std::string& slot, Deadline deadline) const;
  // Returns when every process of the payload stands (or none does).
  Result<void> wait_frozen(const std::string& slot, bool frozen, Deadline deadline) const;
  Result<std::vector<int>> agent_pids(const std::string& slot) const;
  // Any process in any slot.
  // A process in any slot that is not idle.
  bool any_in_use() const;
  // Removes everything, slots included; kConflict while a process is left.
  static Result<void> remove(const CgroupHost& host, const std::string& name);
  // As remove(); kConflict also while somebody has the tree.
  static Result<void> remove_abandoned(const CgroupHost& host, const std::string& name);
  // Trees named by cgroup_name() that nobody has. Nothing is changed.
  static std::vector<AbandonedCgroups> abandoned(const CgroupHost& host);

 private:
  CgroupTree() = default;
  static Result<CgroupTree> fill(const CgroupHost& host, const std::string& name, Fd root, Fd held);
  static Result<void> remove_held(const CgroupHost& host, const std::string& name, const CgroupTree& tree);
  Result<void> wait_event(const std::string& path, std::string_view key, bool value, Deadline deadline) const;
  Result<void> limit_v1(Controller controller, const std::string& slot, const CgroupLimits& limits) const;
  Result<void> limit_v2(Controller controller, const std::string& slot, const CgroupLimits& limits) const;
  int v1(Controller controller) const { return v1_[static_cast<std::size_t>(controller)].get(); }
  bool driven_by_v2(Controller controller) const { return v2_[static_cast<std::size_t>(controller)]; }
  bool any_v2() const { return v2_[0] || v2_[1] || v2_[2]; }

  std::array<Fd, 3> v1_;  // <name> in each v1 hierarchy
  std::array<bool, 3> v2_{};
  Fd unified_;  // <v2>/<name>
  Fd slots_;    // <v2>/<name>/slots
};

// Fields of cgroup's flat-keyed files: the number after `key` at a line's start.
std::uint64_t cgroup_field(std::string_view text, std::string_view key);

}  // namespace dsec::sys
