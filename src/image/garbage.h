// Which layers of a node nobody needs any more: the decision alone.
//
// A layer that nothing holds is unused; unused for long enough it is condemned,
// and condemned for long enough, and still held by nothing, it is due. Each step
// is a look of its own, so that a mistake of one look removes nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dsec::image {

struct GarbagePolicy {
  std::chrono::milliseconds condemn_after = std::chrono::hours(7 * 24);
  std::chrono::milliseconds delete_after = std::chrono::hours(1);
};

// What is remembered of a layer between two looks. Unix time.
struct Disuse {
  std::int64_t since_ms = 0;
  std::int64_t condemned_ms = 0;  // 0: not yet
  bool operator==(const Disuse&) const = default;
};

enum class Fate { kHeld, kUnused, kCondemned, kDue };

struct GarbageVerdict {
  Fate fate = Fate::kHeld;
  std::optional<Disuse> disuse;  // to be remembered; none: to be forgotten
  std::int64_t next_ms = 0;      // when the next step may be taken; 0 for kHeld and kDue
};

std::string_view to_string(Fate fate);

// `held`: whether anything holds it now. A clock that was put back only delays.
GarbageVerdict judge(bool held, const std::optional<Disuse>& before, const GarbagePolicy& policy, std::int64_t now_ms);

}  // namespace dsec::image
