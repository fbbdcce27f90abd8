// A slot: what a sandbox needs that is dear to make, made ahead.
//
// Namespaces and cgroups serve one sandbox after another, a skeleton serves one.
//
// An outer user namespace with a range of ids of its own and one more id for
// aether; an inner one below it, for the payload, in which no namespace can be
// made; a network namespace with loopback up, owned by the outer; cgroups, and a
// cgroup namespace with the payload's at its root, owned by the inner.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "spawner/node.h"
#include "sys/cgroup.h"
#include "sys/fd.h"
#include "sys/process.h"

namespace dsec::spawner {

struct Namespaces {
  sys::Fd outer;
  sys::Fd inner;
  sys::Fd network;
  sys::Fd cgroup;
};

// A sandbox without a root filesystem: namespaces, terminals and aether are
// there, and aether waits. Destroying it ends aether.
struct Skeleton {
  sys::Fd control;  // aether is at the other end; see protocol/agent_descriptors.h
  sys::Fd pidfd;
  sys::Fd proc;     // detached, masked
  sys::Fd devices;  // detached, with terminals, message queues and /dev/shm
  // Detached: the memory that the sandbox writes to, with the directories upper,
  // work, files and shm. One superblock, one limit, which the launch sets.
  sys::Fd memory;
  std::uint64_t memory_bytes = 0;  // the limit
  std::uint32_t pid = 0;
  std::uint64_t identity = 0;

  explicit operator bool() const { return pidfd.valid(); }
};

struct Slot {
  std::uint32_t number = 0;  // decides name and ids
  std::uint64_t generation = 0;  // 0 while free
  Namespaces namespaces;
  sys::SlotCgroups cgroups;  // open while free, for the next launch
  Skeleton skeleton;         // while free and ready
  std::optional<sys::CgroupLimits> limits;  // as last set
  std::uint64_t memory_bytes = 64 << 10;  // the limit of its skeletons' memory, as the last launch set it
  std::uint64_t oom_kills = 0;  // counted in its cgroup by earlier sandboxes

  std::string name() const { return "s" + std::to_string(number); }
};

// How many slots a node can have at once, by ids.
inline constexpr std::uint32_t kMaxSlots = 24'000;
// Host ids: 65,536 a slot from here on, below 2^31 so that every tool can show them.
inline constexpr std::uint32_t kFirstPayloadId = 0x1400'0000;
inline constexpr std::uint32_t kFirstAgentId = 0x1300'0000;
static_assert(kFirstPayloadId + std::uint64_t{kMaxSlots} * 65536 < 0x8000'0000);

inline std::uint32_t payload_id(std::uint32_t number) { return kFirstPayloadId + number * 65536; }
inline std::uint32_t agent_id(std::uint32_t number) { return kFirstAgentId + number; }
// The number in "s<number>", if it is one.
std::optional<std::uint32_t> slot_number(const std::string& name);

// Makes namespaces in a child that leaves no process behind. One thread a maker.
class NamespaceMaker {
 public:
  explicit NamespaceMaker(const Node& node) : node_(node) {}
  // Its children stand in `cgroups` while they live.
  Result<Namespaces> make(std::uint32_t number, const sys::SlotCgroups& cgroups);
  // No socket, not even one that is closing, is left in the network namespace:
  // nothing of the last sandbox can meet the next one there.
  Result<bool> unused(const Namespaces& namespaces);

 private:
  Result<void> renew_settings();

  const Node& node_;
  // A proc for the settings of the namespaces in the making. Each has files of its own
  // behind the same names, which the kernel keeps in one chain for each proc: it would
  // be searched through for as long as slots live.
  sys::Fd settings_;
  int settings_left_ = 0;  // how many more slots it serves
  sys::Fd home_;  // the maker's own network namespace, once it was needed
  sys::ChildStack outer_stack_;
  sys::ChildStack inner_stack_;
};

}  // namespace dsec::spawner
