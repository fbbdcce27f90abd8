#include "apiserver/build_contexts.h"

namespace dsec::apiserver {

void BuildContexts::let_go(std::shared_ptr<image::PartHolds> holds) {
  // A full pool: then here, at the price of a short stop.
  (void)pool_.submit([holds = std::move(holds)]() mutable { holds.reset(); });
}

void BuildContexts::forget_old(Instant now) {
  for (auto at = contexts_.begin(); at != contexts_.end();) {
    if (at->second.until > now) {
      ++at;
      continue;
    }
    let_go(std::move(at->second.holds));
    at = contexts_.erase(at);
  }
}

Result<void> BuildContexts::make_room(const std::string& project, Instant now) {
  forget_old(now);
  std::size_t of_project = 0;
  auto oldest = contexts_.end();
  for (auto at = contexts_.begin(); at != contexts_.end(); ++at) {
    if (at->second.project != project) continue;
    of_project++;
    if (oldest == contexts_.end() || at->second.until < oldest->second.until) oldest = at;
  }
  if (of_project >= kMostOfAProject) {
    let_go(std::move(oldest->second.holds));
    contexts_.erase(oldest);
  }
  return contexts_.size() < kMost ? Result<void>() : Error(ErrorCode::kExhausted, "too many build contexts are held; each goes an hour after it came");
}

Result<BuildContext> BuildContexts::find(const std::string& project, const std::string& id, Instant now) {
  forget_old(now);
  const auto found = contexts_.find(id);
  if (found == contexts_.end() || found->second.project != project) return Error(ErrorCode::kNotFound, "no build context " + id.substr(0, 64) + ": each is held for an hour, or until 32 newer ones have come");
  return found->second;
}

}  // namespace dsec::apiserver
