// The slots of a node: made ahead, used, renewed.
//
// The pool works in the pauses: a burst of launches is not slowed down by what
// replaces the slots that it takes, while enough of them are left.
//
// A ready slot has a skeleton, which waits for a launch; a bare one has none yet.
// A used slot comes back when its sandbox is over. It is used again when nothing
// of that sandbox is left: no process in its cgroups, no socket in its network
// namespace. Its ids, namespaces and cgroups then serve the next one: a v1 memory
// cgroup alone costs 0.2 ms to make, and one that is removed with page cache
// charged to it stays behind as a zombie.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "spawner/skeleton.h"
#include "spawner/slot.h"

namespace dsec::spawner {

// What one thread makes slots with.
struct SlotMaker {
  SlotMaker(const Node& node, int block, const std::vector<sock_filter>& narrow_filter)
      : namespaces(node), skeletons(node, block, narrow_filter) {}
  NamespaceMaker namespaces;
  SkeletonMaker skeletons;
};

class SlotPool {
 public:
  struct Options {
    std::size_t ready = 32;       // slots that wait for a launch, with a skeleton each
    std::uint32_t first_number = 0;  // where numbering starts, so that nodes of one host keep apart
    bool reuse = true;
  };
  struct Counts {
    std::size_t free = 0;
    std::uint64_t prepared = 0;
    std::uint64_t recycled = 0;
    std::vector<std::string> used;
  };

  // Learns which slots an earlier spawner left in use, removes those that are
  // empty, and begins to fill.
  // The filters outlive the pool.
  SlotPool(const Node& node, const sys::CgroupTree& cgroups, const std::vector<sock_filter>& broad_filter,
           const std::vector<sock_filter>& narrow_filter, Options options);
  // Removes the free slots; those in use stay.
  ~SlotPool();
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  // A ready slot, or one made at once by `maker`, which is the calling thread's own.
  // It is not idle any more.
  Result<Slot> take(SlotMaker& maker, Deadline deadline);
  // Its launch failed; what runs in it is ended.
  void put_back(Slot slot);
  // Its launch went well; the pool remembers it until release().
  void keep_used(Slot slot);
  // False while a process is left in it. See protocol::ReleaseRequest.
  Result<bool> release(const std::string& name, std::uint64_t generation);
  Counts counts();

 private:
  void run();
  // With the lock: somebody has just taken a slot or given one back. True: the pool's
  // thread is to be woken.
  bool disturbed();
  bool urgent() const;
  // One step towards `ready`; false when there is nothing to do.
  bool work(SlotMaker& maker, std::unique_lock<std::mutex>& lock);
  Result<Slot> make_bare(NamespaceMaker& maker);
  bool renew(NamespaceMaker& maker, Slot& slot);
  Result<void> flesh_out(SlotMaker& maker, Slot& slot);
  Result<Slot> take_ready(SlotMaker& maker, Deadline deadline);
  void discard(Slot slot);
  Result<std::uint32_t> claim_number();
  void drop_number(std::uint32_t number);

  const Node& node_;
  const sys::CgroupTree& cgroups_;
  const std::vector<sock_filter>& broad_filter_;
  const std::vector<sock_filter>& narrow_filter_;
  const Options options_;

  // Guards what follows; never held across a system call.
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  bool filling_ = true;  // until `ready` are there
  bool resting_ = false;  // the thread waits for quiet_at_
  Instant quiet_at_{};
  std::deque<Slot> ready_;
  std::deque<Slot> bare_;
  std::deque<Slot> returned_;
  std::map<std::string, Slot> used_;
  std::set<std::uint32_t> numbers_;
  std::uint32_t next_number_;
  std::uint64_t generation_;
  std::uint64_t prepared_ = 0;
  std::uint64_t recycled_ = 0;

  std::thread thread_;
};

}  // namespace dsec::spawner
