// What the spawner makes once and every sandbox shares.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "sys/cgroup.h"
#include "sys/fd.h"

namespace dsec::spawner {

// A path below /proc that is hidden behind an empty, read-only file or directory.
struct Mask {
  std::string name;
  bool directory = false;
};

// Descriptors only: after set_up_node the process sees nothing of the host by
// path. Its mount namespace is one read-only 4 KiB tmpfs with two mount points
// that show a proc of a dead pid namespace and a sysfs of an empty network
// namespace. Both must be visible somewhere, or a user namespace may mount
// neither; and a mount namespace this small is what a sandbox's copy costs.
struct Node {
  sys::Fd proc;    // the host's /proc
  sys::Fd null;    // /dev/null
  sys::Fd agent;   // the agent, mode 0111, owned by host root, on a mount that is not idmapped
  sys::Fd devices; // detached, read-only: /dev of every sandbox
  sys::Fd sysfs;   // detached, read-only: /sys of every sandbox
  sys::Fd masks;   // detached, read-only: "file" and "directory", both empty
  std::vector<Mask> masked;
  bool v1_cgroups = false;
  unsigned nofile_limit = 0;
};

// Descriptors from here on are the spawner's own; those below are the places at
// which children find what they need, and are never allocated otherwise.
inline constexpr int kFirstOrdinaryFd = 144;
// One block of kBlockFds places for each worker, from kFirstBlockFd on.
inline constexpr int kFirstBlockFd = 16;
inline constexpr int kBlockFds = 8;
inline constexpr int kBlocks = (kFirstOrdinaryFd - kFirstBlockFd) / kBlockFds;
// The last block is the pool's own.
inline constexpr int kMaxWorkers = kBlocks - 1;

// Call once, in a process with a single thread. `agent_path` is read now.
Result<Node> set_up_node(const std::string& agent_path, const sys::CgroupHost& host);

// Fills every number below kFirstOrdinaryFd that is free, so that none of them is
// handed out; `listener` is moved above first.
Result<void> reserve_low_descriptors(const Node& node);

// Moves a descriptor to kFirstOrdinaryFd or above.
Result<sys::Fd> raise_descriptor(sys::Fd fd);

}  // namespace dsec::spawner
