// Makes skeletons: see Skeleton. One thread a maker.
#pragma once

#include <linux/filter.h>

#include <vector>

#include "base/result.h"
#include "spawner/node.h"
#include "spawner/slot.h"
#include "spawner/stage.h"
#include "sys/process.h"

namespace dsec::spawner {

class SkeletonMaker {
 public:
  // `block` is a number below kBlocks that no other maker has. The thread that
  // makes must have loaded the broad filter: aether inherits it.
  SkeletonMaker(const Node& node, int block, const std::vector<sock_filter>& narrow_filter)
      : node_(node), block_(kFirstBlockFd + block * kBlockFds), filter_(narrow_filter) {}
  // After an error nothing ran and nothing is left.
  Result<Skeleton> make(const Slot& slot);

 private:
  Result<void> put_descriptors(const Slot& slot, int control, Stage& stage);
  // Proc masked, terminals, queues and memory in place.
  Result<void> furnish(const Slot& slot, Skeleton& skeleton, const sys::Fd& terminals, const sys::Fd& queues);

  const Node& node_;
  const int block_;
  const std::vector<sock_filter>& filter_;
  sys::ChildStack stager_stack_;
  sys::ChildStack init_stack_;
};

// Ends aether and waits until it is gone. Any thread.
void end_skeleton(Skeleton skeleton);

}  // namespace dsec::spawner
