// The memory of a container, and how it is given back.
#include <algorithm>

#include "backend/container/instance.h"
#include "base/fail_point.h"
#include "sys/reclaim.h"

namespace dsec::backend::container {

namespace {

constexpr auto kPrefetchTime = std::chrono::seconds(5);

}  // namespace

// Process by process first: that can be given up within milliseconds, and takes one
// process's pages after another, where the cgroup's own way starts anew with each batch. What
// it leaves, page cache and files in memory, goes with the cgroup's.
Result<Reclaimed> ContainerInstance::reclaim(const std::atomic<bool>& cancelled, Deadline deadline) {
  DSEC_TRY(fail_point("container.reclaim"));
  if (scope_->given_back.load()) return Error(ErrorCode::kNotFound, "the sandbox is over");
  DSEC_ASSIGN(const sys::CgroupMemory before, shared_->cgroups.memory(record_.slot));
  DSEC_TRY(shared_->cgroups.allow_swap(record_.slot, true));
  DSEC_ASSIGN(const std::vector<int> pids, shared_->cgroups.payload_pids(record_.slot));
  for (const int pid : pids) {
    const Result<void> advised = sys::advise_process(pid, sys::MemoryAdvice::kPageOut, cancelled, deadline);
    if (!advised.ok() && advised.error().code() != ErrorCode::kNotFound) return advised.error();
  }
  // A slot that was given back is another sandbox's.
  if (cancelled.load() || scope_->given_back.load()) return Error(ErrorCode::kCancelled, "the sandbox is over or goes on");
  const Result<void> given = shared_->cgroups.reclaim(record_.slot, cancelled, deadline);
  // Of one that runs, only what it did not need just now went there.
  if (!shared_->cgroups.payload_frozen(record_.slot)) DSEC_TRY(shared_->cgroups.allow_swap(record_.slot, false));
  DSEC_TRY(given);
  DSEC_ASSIGN(const sys::CgroupMemory after, shared_->cgroups.memory(record_.slot));
  return Reclaimed{before.bytes, after.bytes, after.swapped_bytes};
}

Result<MemoryUse> ContainerInstance::memory() {
  if (scope_->given_back.load()) return Error(ErrorCode::kNotFound, "the sandbox is over");
  DSEC_ASSIGN(const sys::CgroupMemory now, shared_->cgroups.memory(record_.slot));
  return MemoryUse{now.bytes - std::min(now.bytes, now.inactive_file_bytes), now.swapped_bytes, now.stalled_usec};
}

void ContainerInstance::prefetch() {
  const auto pids = shared_->cgroups.payload_pids(record_.slot);
  if (!pids.ok()) return;
  static constexpr std::atomic<bool> kNever{false};
  const Deadline by = Deadline::in(kPrefetchTime);
  for (const int pid : *pids) (void)sys::advise_process(pid, sys::MemoryAdvice::kWillNeed, kNever, by);
}

}  // namespace dsec::backend::container
