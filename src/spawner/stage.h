// The part of a launch that runs in children sharing the spawner's memory.
//
//   worker --clone3(VM, VFORK, NEWNS)--> stager, host root: puts the mounts in
//   place, enters the outer user namespace and its network namespace
//     --clone3(VM, VFORK, PARENT, NEWNS, NEWPID, …)--> init: its mount namespace is
//     a copy made across a user namespace, so that every mount arrives locked;
//     mounts proc, devpts and mqueue, drops to aether's identity, executes aether
//
// Each waits for the next, so one thread of this memory runs at a time. Children
// make system calls only: a child killed inside the allocator would leave its
// lock taken for ever.
#pragma once

#include <linux/filter.h>

#include <array>
#include <cstdint>

#include "protocol/spawner_messages.h"
#include "spawner/node.h"
#include "sys/process.h"

namespace dsec::spawner {

// Places in a worker's block, where init looks: kBlockFds in all.
enum class Place : int { kListen, kInner, kMemoryTasks, kCpuTasks, kPidsTasks, kPayload, kAgent, kNull, kCount };
static_assert(static_cast<int>(Place::kCount) <= kBlockFds);

struct Stage {
  // Set by the worker.
  const Node* node = nullptr;
  const sys::ChildStack* init_stack = nullptr;
  const sock_filter* filter = nullptr;
  unsigned short filter_length = 0;
  int block = 0;  // the worker's first place
  int overlay = -1, devices = -1, shm = -1, sysfs = -1;  // detached mounts
  int outer = -1, network = -1, cgroup = -1;             // namespaces
  int agent_cgroup = -1;
  std::uint32_t payload_uid = 0;  // host id of the sandbox's root
  std::array<bool, 3> v1{};
  char hostname[65] = {};

  // Set by the children.
  std::int64_t last_nsec = 0;
  std::array<std::uint32_t, protocol::kLaunchSteps> step_nsec{};
  protocol::LaunchStep step = protocol::LaunchStep::kStager;  // begun
  int error = 0;
  const char* what = nullptr;  // a literal
  bool executing = false;      // execveat was reached
  int pidfd = -1;
  int pid = -1;
  // Opened in the shared table; the worker closes them, however the child ended.
  std::array<int, 24> opened{};
  int opened_count = 0;
};

std::int64_t monotonic_nsec();
// Ends `step` and begins the next.
void mark(Stage& stage, protocol::LaunchStep step);

// Runs the stager and returns when aether runs or all is over; Stage says which.
void run_stage(Stage& stage, const sys::ChildStack& stager_stack);

}  // namespace dsec::spawner
