#include "spawner/slot_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include "base/fail_point.h"
#include "base/log.h"
#include "base/random.h"
#include "spawner/filter.h"

namespace dsec::spawner {

namespace {
constexpr int kPoolNice = 10;
constexpr auto kLeftoverPatience = std::chrono::seconds(5);
constexpr auto kQuiet = std::chrono::milliseconds(5);
}

SlotPool::SlotPool(const Node& node, const sys::CgroupTree& cgroups, const std::vector<sock_filter>& broad_filter,
                   const std::vector<sock_filter>& narrow_filter, Options options)
    : node_(node),
      cgroups_(cgroups),
      broad_filter_(broad_filter),
      narrow_filter_(narrow_filter),
      options_(options),
      next_number_(options.first_number % kMaxSlots) {
  // Never 0, and never that of an earlier spawner.
  generation_ = SystemRandom().next() | 1;
  if (auto names = cgroups_.slots(); names.ok())
    for (const std::string& name : *names) {
      const auto number = slot_number(name);
      if (!number) continue;
      // A skeleton ends with the spawner that made it; this one need not wait for that.
      if (cgroups_.idle(name) && cgroups_.populated(name) && cgroups_.kill(name).ok())
        (void)cgroups_.wait_empty(name, Deadline::in(kLeftoverPatience));
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
  for (std::deque<Slot>* slots : {&ready_, &bare_, &returned_}) {
    for (Slot& slot : *slots) slot.skeleton.control.reset();  // all at once, then each is waited for
    for (Slot& slot : *slots) discard(std::move(slot));
  }
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

Result<Slot> SlotPool::make_bare(NamespaceMaker& maker) {
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
  end_skeleton(std::exchange(slot.skeleton, {}));
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
  end_skeleton(std::exchange(slot.skeleton, {}));
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

Result<void> SlotPool::flesh_out(SlotMaker& maker, Slot& slot) {
  DSEC_TRY(cgroups_.set_idle(slot.name(), true));
  DSEC_ASSIGN(slot.skeleton, maker.skeletons.make(slot));
  return {};
}

Result<Slot> SlotPool::take_ready(SlotMaker& maker, Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (!ready_.empty()) {
    Slot slot = std::move(ready_.front());
    ready_.pop_front();
    if (!sys::process_ended(slot.skeleton.pidfd.get())) return slot;
    returned_.push_back(std::move(slot));  // killed, by whoever may
  }
  Slot slot;
  while (!bare_.empty() || !returned_.empty()) {
    std::deque<Slot>& from = bare_.empty() ? returned_ : bare_;
    const bool renewed = &from == &bare_;
    slot = std::move(from.front());
    from.pop_front();
    lock.unlock();
    if (renewed || renew(maker.namespaces, slot)) {
      if (!renewed) {
        lock.lock();
        ++recycled_;
        lock.unlock();
      }
      if (Result<void> made = flesh_out(maker, slot); !made.ok()) {
        put_back(std::move(slot));
        return std::move(made).error();
      }
      return slot;
    }
    discard(std::move(slot));
    lock.lock();
  }
  lock.unlock();
  if (deadline.passed()) return Error(ErrorCode::kDeadlineExceeded, "no slot was ready");
  DSEC_ASSIGN(slot, make_bare(maker.namespaces));
  if (Result<void> made = flesh_out(maker, slot); !made.ok()) {
    put_back(std::move(slot));
    return std::move(made).error();
  }
  return slot;
}

bool SlotPool::urgent() const { return filling_ || ready_.size() < options_.ready / 4 || returned_.size() > options_.ready; }

bool SlotPool::disturbed() {
  quiet_at_ = std::chrono::steady_clock::now() + kQuiet;
  return !resting_ || urgent();
}

Result<Slot> SlotPool::take(SlotMaker& maker, Deadline deadline) {
  DSEC_TRY(fail_point("spawner.slot.take"));
  Result<Slot> taken = take_ready(maker, deadline);
  if (taken.ok()) {
    if (Result<void> marked = cgroups_.set_idle(taken->name(), false); !marked.ok()) {
      put_back(std::move(*taken));
      return std::move(marked).error();
    }
  }
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (taken.ok()) taken->generation = ++generation_;
    wake = disturbed();
  }
  if (wake) changed_.notify_one();
  return taken;
}

void SlotPool::put_back(Slot slot) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    returned_.push_back(std::move(slot));
    wake = disturbed();
  }
  if (wake) changed_.notify_one();
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
  Slot slot;
  {
    const std::lock_guard lock(mutex_);
    auto found = used_.extract(name);
    if (found.empty()) return true;
    slot = std::move(found.mapped());
  }
  put_back(std::move(slot));
  return true;
}

SlotPool::Counts SlotPool::counts() {
  const std::lock_guard lock(mutex_);
  Counts out{ready_.size() + bare_.size(), prepared_, recycled_, {}};
  for (const auto& [name, slot] : used_) out.used.push_back(name);
  return out;
}

// With the lock, which it lets go of around system calls.
bool SlotPool::work(SlotMaker& maker, std::unique_lock<std::mutex>& lock) {
  if (ready_.size() < options_.ready && !bare_.empty()) {
    Slot slot = std::move(bare_.front());
    bare_.pop_front();
    lock.unlock();
    if (const Result<void> made = flesh_out(maker, slot); !made.ok()) {
      log_error("a skeleton could not be made", {{"slot", slot.name()}, {"error", made.error().message()}});
      discard(std::move(slot));
      lock.lock();
      return false;  // it waits for the next take, whose launch reports its own failure
    }
    lock.lock();
    ready_.push_back(std::move(slot));
    return true;
  }
  if (!returned_.empty()) {
    Slot slot = std::move(returned_.front());
    returned_.pop_front();
    // Renewing is ten times cheaper than making: what comes back is kept beyond
    // `ready`, and new ones are made only when half of that is gone.
    const bool wanted = bare_.size() < 2 * options_.ready;
    lock.unlock();
    if (!wanted || !renew(maker.namespaces, slot)) {
      discard(std::move(slot));
      lock.lock();
      return true;
    }
    lock.lock();
    ++recycled_;
    bare_.push_back(std::move(slot));
    return true;
  }
  if (ready_.size() + bare_.size() < (filling_ ? options_.ready : options_.ready / 2)) {
    filling_ = true;
    lock.unlock();
    Result<Slot> made = make_bare(maker.namespaces);
    lock.lock();
    if (!made.ok()) {
      log_error("a slot could not be made", {{"error", made.error().message()}});
      return false;
    }
    bare_.push_back(std::move(*made));
    return true;
  }
  filling_ = false;
  return false;
}

void SlotPool::run() {
  if (auto loaded = load_filter(broad_filter_); !loaded.ok()) {
    log_error("the pool cannot make skeletons", {{"error", loaded.error().message()}});
    return;
  }
  // Behind the launches, which do not wait for it; the stager takes its own nice value back.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kPoolNice);
  SlotMaker maker(node_, kBlocks - 1, narrow_filter_);
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (!urgent() && std::chrono::steady_clock::now() < quiet_at_) {
      resting_ = true;
      changed_.wait_until(lock, quiet_at_);
      resting_ = false;
    } else if (!work(maker, lock) && !stopping_) {
      changed_.wait(lock);
    }
  }
}

}  // namespace dsec::spawner
