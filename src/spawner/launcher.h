// Makes one sandbox at a time, on one worker thread.
#pragma once

#include <linux/filter.h>

#include <memory>
#include <vector>

#include "protocol/spawner_messages.h"
#include "spawner/node.h"
#include "spawner/slot_pool.h"
#include "spawner/stage.h"
#include "sys/process.h"

namespace dsec::spawner {

// The descriptors of a request; all borrowed.
struct LaunchDescriptors {
  int listener = -1;
  std::vector<int> layers;
  int directory = -1;
};

struct Launched {
  protocol::LaunchReply reply;
  sys::Fd pidfd;
};

class Launcher {
 public:
  Launcher(const Node& node, const sys::CgroupTree& cgroups, SlotPool& pool, int worker, const std::vector<sock_filter>& filter);
  // After a reply that says "not launched" nothing ran and nothing is left.
  Launched launch(const protocol::LaunchRequest& request, const LaunchDescriptors& descriptors);

 private:
  Result<void> prepare(const protocol::LaunchRequest& request, const LaunchDescriptors& descriptors, Slot& slot, Stage& stage);

  const Node& node_;
  const sys::CgroupTree& cgroups_;
  SlotPool& pool_;
  const int block_;
  const std::vector<sock_filter>& filter_;
  NamespaceMaker maker_;
  sys::ChildStack stager_stack_;
  sys::ChildStack init_stack_;
  std::vector<sys::Fd> mounts_;  // of the launch in progress
};

}  // namespace dsec::spawner
