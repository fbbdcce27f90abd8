// Makes one sandbox at a time, on one worker thread.
#pragma once

#include <linux/filter.h>

#include <vector>

#include "protocol/spawner_messages.h"
#include "spawner/node.h"
#include "spawner/slot_pool.h"
#include "sys/fd.h"

namespace dsec::spawner {

// The descriptors of a request; all borrowed.
struct LaunchDescriptors {
  int listener = -1;
  std::vector<int> layers;
  int directory = -1;
};

struct Launched {
  protocol::LaunchReply reply;
  Skeleton skeleton;  // aether's pidfd; its control is closed
};

// The namespaces that a worker thread comes back to.
struct Home {
  static Result<Home> open(const Node& node);
  sys::Fd mounts;
  sys::Fd names;  // UTS
};

class Launcher {
 public:
  // The calling thread has a root and a working directory of its own (CLONE_FS unshared).
  Launcher(const Node& node, const sys::CgroupTree& cgroups, SlotPool& pool, int worker, const std::vector<sock_filter>& narrow_filter,
           Home home);
  // After a reply that says "not launched" nothing of the payload ran and nothing is left.
  Launched launch(const protocol::LaunchRequest& request, const LaunchDescriptors& descriptors);
  // Ends what launch() made and gives its slot back.
  void abandon(Launched launched);

 private:
  struct Timer;
  Result<void> build(const protocol::LaunchRequest& request, const LaunchDescriptors& descriptors, Slot& slot, Timer& timer);
  static Result<std::string> handle_of_upper(const protocol::LaunchRequest& request, const Slot& slot);
  Result<void> enter(const Skeleton& skeleton, const sys::Fd& root, const std::string& hostname);

  const Node& node_;
  const sys::CgroupTree& cgroups_;
  SlotPool& pool_;
  SlotMaker maker_;
  const Home home_;
};

}  // namespace dsec::spawner
