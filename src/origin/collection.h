// Garbage collection of a shared store.
//
// Live is what a lease names (lease.h), and what the manifests of the layers that
// it names are made of. All else is condemned by a mark beside it. What is still
// not live when its mark is old enough gets a second mark, which whoever needs it
// waits for; the leases are read once more, and then it is removed, manifests
// before what they name, marks last. So a run can be killed at any step: the next
// one goes on. A store has one run at a time: a mark of its own sees to it, which
// the node that made it may take back at once, and others after a time.
//
// Uploads that nobody ended are seen before the leases are read, so that the
// lease of whoever is still at it is seen too. They have no second mark: their age
// is told by the store's own clock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "origin/origin.h"

namespace dsec::origin {

struct CollectionOptions {
  std::string node;  // who collects; makes one run at a time
  bool dry_run = false;
  std::chrono::milliseconds delete_after = std::chrono::hours(7 * 24);  // condemned for so long
  // Longer than a name takes to be seen by another node: 5 s on CephFS.
  Duration settle = std::chrono::seconds(15);
  // A lease counts for so long after it expired: what clocks of nodes may differ by.
  std::chrono::milliseconds grace = std::chrono::hours(1);
  // What is left of an upload goes when it is as old as what is condemned, and
  // never sooner than this: who publishes without a lease (a mark, a trace) takes less.
  std::chrono::milliseconds leftovers_after = std::chrono::minutes(10);
  // Never sooner than this when a lease names what it was to become: no call of
  // publish() for less than 160 GiB may take so long.
  std::chrono::milliseconds leased_leftovers_after = std::chrono::hours(48);
  std::chrono::seconds call_deadline{60};
  std::chrono::milliseconds run_limit = std::chrono::hours(6);  // an older run of another node is taken for dead
  const std::atomic<bool>* cancelled = nullptr;
};

struct CollectedObject {
  std::string hex;
  std::vector<ObjectKind> kinds;  // what there is of it, marks left out
  enum class Fate { kCondemned, kRemoved, kDue } fate = Fate::kCondemned;  // kDue: a dry run would have removed it
  std::uint64_t bytes = 0;        // of kRemoved and kDue
  std::int64_t condemned_ms = 0;
};

struct CollectedLeftovers {
  std::uint64_t found = 0;    // uploads under way among them
  std::uint64_t removed = 0;  // or, in a dry run, due
  std::uint64_t bytes = 0;    // of those
};

struct Collection {
  std::vector<CollectedObject> objects;  // that are not live
  std::vector<std::string> nodes;        // whose leases count
  std::uint64_t live = 0;                // objects by hex
  std::uint64_t expired_leases = 0;      // removed
  std::optional<CollectedLeftovers> leftovers;  // none: the store cannot tell
  std::uint64_t freed_bytes = 0;                // leftovers too
};

// Blocks for as long as reading the store's names takes, and for `settle` when
// something is due. Nothing is removed after an error in a lease or a manifest:
// what it names is not known. kConflict while another run is at it.
Result<Collection> collect(Origin& origin, const Clock& clock, const CollectionOptions& options);
// Whether a run of this node was cut off: until the next one, whoever needs what it
// was about to remove waits.
Result<bool> was_cut_off(Origin& origin, const std::string& node, Deadline deadline);

}  // namespace dsec::origin
