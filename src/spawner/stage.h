// The part of a skeleton's making that runs in children sharing the spawner's memory.
//
//   worker --clone3(VM, VFORK, INTO_CGROUP)--> stager, host root: enters the outer
//   user namespace and its network namespace
//     --clone3(VM, VFORK, PARENT, NEWNS, NEWPID, …)--> init: its mount namespace is
//     a copy made across a user namespace, so that the empty root in it is locked;
//     makes proc, devpts and mqueue, drops to aether's identity, executes aether
//
// Each waits for the next, so one thread of this memory runs at a time. Children
// make system calls only: a child killed inside the allocator would leave its
// lock taken for ever.
#pragma once

#include <linux/filter.h>

#include <array>
#include <cstdint>

#include "spawner/node.h"
#include "sys/process.h"

namespace dsec::spawner {

// Places in a maker's block, where init looks: kBlockFds in all.
enum class Place : int { kControl, kInner, kMemoryTasks, kCpuTasks, kPidsTasks, kPayload, kAgent, kNull, kCount };
static_assert(static_cast<int>(Place::kCount) <= kBlockFds);

struct Stage {
  // Set by the maker.
  const Node* node = nullptr;
  const sys::ChildStack* init_stack = nullptr;
  const sock_filter* filter = nullptr;
  unsigned short filter_length = 0;
  int block = 0;  // the maker's first place
  int outer = -1, network = -1, cgroup = -1;  // namespaces
  int agent_cgroup = -1;
  std::array<bool, 3> v1{};

  // Set by the children.
  int error = 0;
  const char* what = nullptr;  // a literal
  bool executing = false;      // execveat was reached
  int pidfd = -1;
  int pid = -1;
  int proc = -1, terminals = -1, queues = -1;  // detached mounts
  // Opened in the shared table; the maker closes them, however the child ended.
  std::array<int, 8> opened{};
  int opened_count = 0;
};

// Runs the stager and returns when aether runs or all is over; Stage says which.
void run_stage(Stage& stage, const sys::ChildStack& stager_stack);

}  // namespace dsec::spawner
