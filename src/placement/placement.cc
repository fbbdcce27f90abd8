#include "placement/placement.h"

#include <algorithm>

namespace dsec::placement {

namespace {

constexpr std::size_t kDrawn = 3;

double share(std::uint64_t used, std::uint64_t most) {
  return most == 0 ? 0 : static_cast<double>(used) / static_cast<double>(most);
}

bool has_room(const EdgeLoad& edge, const Demand& demand) {
  return (edge.most_sandboxes == 0 || edge.sandboxes < edge.most_sandboxes) &&
         (edge.most_memory_mb == 0 || edge.memory_mb + demand.memory_mb <= edge.most_memory_mb);
}

// Fuller where it is fullest, then by the number of sandboxes.
bool less_loaded(const EdgeLoad& a, const EdgeLoad& b) {
  const double of_a = std::max(share(a.sandboxes, a.most_sandboxes), share(a.memory_mb, a.most_memory_mb));
  const double of_b = std::max(share(b.sandboxes, b.most_sandboxes), share(b.memory_mb, b.most_memory_mb));
  return of_a != of_b ? of_a < of_b : a.sandboxes < b.sandboxes;
}

}  // namespace

Result<std::size_t> place(const std::vector<EdgeLoad>& edges, const Demand& demand, Random& random) {
  std::vector<std::size_t> accepting, roomy;
  bool known = false;
  bool runs = false;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const EdgeLoad& edge = edges[i];
    if (std::find(edge.backends.begin(), edge.backends.end(), demand.backend) == edge.backends.end()) continue;
    known = true;
    if (!demand.architecture.empty() && demand.architecture != edge.architecture) continue;
    runs = true;
    if (!edge.accepting) continue;
    accepting.push_back(i);
    if (has_room(edge, demand)) roomy.push_back(i);
  }
  if (!known) return Error(ErrorCode::kUnsupported, "backend: \"" + demand.backend + "\" is there on no node");
  if (!runs) return Error(ErrorCode::kUnsupported, "architecture: no node runs " + demand.architecture);
  if (accepting.empty()) return Error(ErrorCode::kUnavailable, "every node that has backend \"" + demand.backend + "\" is stopping");
  const auto better = [&](std::size_t a, std::size_t b) { return less_loaded(edges[a], edges[b]); };
  if (roomy.empty()) return *std::min_element(accepting.begin(), accepting.end(), better);
  // The first kDrawn of a shuffle.
  for (std::size_t i = 0; i < std::min(kDrawn, roomy.size()); ++i) std::swap(roomy[i], roomy[i + random.next() % (roomy.size() - i)]);
  roomy.resize(std::min(kDrawn, roomy.size()));
  return *std::min_element(roomy.begin(), roomy.end(), better);
}

}  // namespace dsec::placement
