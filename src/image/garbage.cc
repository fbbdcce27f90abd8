#include "image/garbage.h"

#include <algorithm>

namespace dsec::image {

std::string_view to_string(Fate fate) {
  switch (fate) {
    case Fate::kHeld:
      return "held";
    case Fate::kUnused:
      return "unused";
    case Fate::kCondemned:
      return "condemned";
    case Fate::kDue:
      return "due";
  }
  return "held";
}

GarbageVerdict judge(bool held, const std::optional<Disuse>& before, const GarbagePolicy& policy, std::int64_t now_ms) {
  if (held) return {};
  Disuse disuse = before.value_or(Disuse{.since_ms = now_ms});
  disuse.since_ms = std::min(disuse.since_ms, now_ms);
  const std::int64_t condemned_from = disuse.since_ms + policy.condemn_after.count();
  if (disuse.condemned_ms == 0) {
    if (now_ms < condemned_from) return {Fate::kUnused, disuse, condemned_from};
    disuse.condemned_ms = now_ms;
    return {Fate::kCondemned, disuse, now_ms + policy.delete_after.count()};
  }
  disuse.condemned_ms = std::min(disuse.condemned_ms, now_ms);
  const std::int64_t due_from = disuse.condemned_ms + policy.delete_after.count();
  if (now_ms < due_from) return {Fate::kCondemned, disuse, due_from};
  return {Fate::kDue, disuse, 0};
}

}  // namespace dsec::image
