#include "spawner/slot_pool.h"

#include "base/fail_point.h"
#include "base/log.h"
#include "base/random.h"

namespace dsec::spawner {

SlotPool::SlotPool(const Node& node, const sys::CgroupTree& cgroups, Options options)
    : node_(node), cgroups_(cgroups), options_(options), next_number_(options.first_number % kMaxSlots) {
  // Never 0, and never that of an earlier spawner.
  generation_ = SystemRandom().next() | 1;
  if (auto names = cgroups_.slots(); names.ok())
    for (const std::string& name : *names) {
      const auto number = slot_number(name);
      if (!number) continue;
      if (!cgroups_.populated(name) && cgroups_.remove_slot(name).ok()) continue;
      Slot slot;
      slot.number = *number;
      numbers_.insert(*number);
      used_.emplace(name, std::move(slot));
    }
  thread_ = std::thread([this] { run(); });
}

SlotPool::~SlotPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (Slot& slot : returned_) free_.push_back(std::move(slot));
  for (Slot& slot : free_) discard(std::move(slot));
}

Result<std::uint32_t> SlotPool::claim_number() {
  const std::lock_guard lock(mutex_);
  for (std::uint32_t tried = 0; tried < kMaxSlots; ++tried) {
    const std::uint32_t number = next_number_;
    next_number_ = (next_number_ + 1) % kMaxSlots;
    if (numbers_.insert(number).second) return number;
  }
  return Error(ErrorCode::kExhausted, "every slot of this node is in use");
}

void SlotPool::drop_number(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  numbers_.erase(number);
}

Result<Slot> SlotPool::make(NamespaceMaker& maker) {
  DSEC_ASSIGN(const std::uint32_t number, claim_number());
  Slot slot;
  slot.number = number;
  const std::string name = slot.name();
  const Result<void> made = [&]() -> Result<void> {
    DSEC_TRY(fail_point("spawner.slot.cgroups"));
    DSEC_TRY(cgroups_.make_slot(name, agent_id(number)));
    DSEC_ASSIGN(slot.cgroups, cgroups_.open_slot(name));
    DSEC_ASSIGN(slot.namespaces, maker.make(number, slot.cgroups));
    return {};
  }();
  if (!made.ok()) {
    slot.namespaces = {};
    slot.cgroups = {};
    (void)cgroups_.remove_slot(name);
    drop_number(number);
    return made.error();
  }
  const std::lock_guard lock(mutex_);
  ++prepared_;
  return slot;
}

bool SlotPool::renew(NamespaceMaker& maker, Slot& slot) {
  const std::string name = slot.name();
  if (!options_.reuse || !slot.namespaces.network) return false;
  const auto unused = maker.unused(slot.namespaces);
  if (!unused.ok() || !*unused) return false;
  if (!cgroups_.renew_slot(name).ok() || cgroups_.populated(name)) return false;
  auto opened = cgroups_.open_slot(name);
  auto kills = cgroups_.oom_kills(name);
  if (!opened.ok() || !kills.ok()) return false;
  slot.cgroups = std::move(*opened);
  slot.oom_kills = *kills;
  slot.generation = 0;
  return true;
}

void SlotPool::discard(Slot slot) {
  const std::string name = slot.name();
  slot.cgroups = {};
  if (const auto removed = cgroups_.remove_slot(name); !removed.ok()) {
    log_warning("a slot could not be removed", {{"slot", name}, {"error", removed.error().message()}});
    const std::lock_guard lock(mutex_);
    slot.generation = 0;
    used_.emplace(name, std::move(slot));  // its number stays taken; release() tries again
    return;
  }
  drop_number(slot.number);
}

Result<Slot> SlotPool::take(NamespaceMaker& maker, Deadline deadline) {
  DSEC_TRY(fail_point("spawner.slot.take"));
  Result<Slot> taken = [&]() -> Result<Slot> {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        Slot slot = std::move(free_.front());
        free_.pop_front();
        return slot;
      }
    }
    if (deadline.passed()) return Error(ErrorCode::kDeadlineExceeded, "no slot was ready");
    return make(maker);
  }();
  if (taken.ok()) {
    const std::lock_guard lock(mutex_);
    taken->generation = ++generation_;
  }
  changed_.notify_one();
  return taken;
}

void SlotPool::put_back(Slot slot) {
  {
    const std::lock_guard lock(mutex_);
    returned_.push_back(std::move(slot));
  }
  changed_.notify_one();
}

void SlotPool::keep_used(Slot slot) {
  slot.cgroups = {};
  std::string name = slot.name();
  const std::lock_guard lock(mutex_);
  used_.insert_or_assign(std::move(name), std::move(slot));
}

Result<bool> SlotPool::release(const std::string& name, std::uint64_t generation) {
  if (!slot_number(name)) return invalid_argument("not the name of a slot");
  {
    const std::lock_guard lock(mutex_);
    const auto it = used_.find(name);
    // Gone already, or another sandbox's by now: that one is not ours to touch.
    if (it == used_.end()) return true;
    if (it->second.generation != 0 && generation != 0 && it->second.generation != generation) return true;
  }
  if (cgroups_.populated(name)) return false;
  {
    const std::lock_guard lock(mutex_);
    auto found = used_.extract(name);
    if (found.empty()) return true;
    returned_.push_back(std::move(found.mapped()));
  }
  changed_.notify_one();
  return true;
}

SlotPool::Counts SlotPool::counts() {
  const std::lock_guard lock(mutex_);
  Counts out{free_.size(), prepared_, recycled_, {}};
  for (const auto& [name, slot] : used_) out.used.push_back(name);
  return out;
}

void SlotPool::run() {
  NamespaceMaker maker(node_);
  bool filling = true;  // until `ready` are there
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (!returned_.empty()) {
      Slot slot = std::move(returned_.front());
      returned_.pop_front();
      // Renewing is ten times cheaper than making: what comes back is kept beyond
      // `ready`, and new ones are made only when half of that is gone.
      const bool wanted = free_.size() < 2 * options_.ready;
      lock.unlock();
      const bool renewed = wanted && renew(maker, slot);
      if (!renewed) discard(std::move(slot));
      lock.lock();
      if (renewed) {
        ++recycled_;
        free_.push_back(std::move(slot));
      }
      continue;
    }
    if (free_.size() < (filling ? options_.ready : options_.ready / 2)) {
      filling = true;
      lock.unlock();
      Result<Slot> made = make(maker);
      lock.lock();
      if (made.ok()) {
        free_.push_back(std::move(*made));
        continue;
      }
      log_error("a slot could not be made", {{"error", made.error().message()}});
      // The next take or release wakes this again; launches report their own error.
    }
    filling = false;
    changed_.wait(lock);
  }
}

}  // namespace dsec::spawner
