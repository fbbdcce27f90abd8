#include "edge/brake.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace dsec::edge {

namespace {

constexpr std::uint64_t kSmallestCulprit = 64 << 20;

std::uint64_t mib(std::uint64_t bytes) { return bytes >> 20; }

// The largest first, `most` of those that `wanted` takes.
template <typename Wanted>
std::vector<const BrakeSandbox*> largest(const std::vector<BrakeSandbox>& all, std::size_t most, Wanted wanted) {
  std::vector<const BrakeSandbox*> found;
  for (const BrakeSandbox& one : all)
    if (wanted(one)) found.push_back(&one);
  std::sort(found.begin(), found.end(), [](const BrakeSandbox* a, const BrakeSandbox* b) { return a->bytes != b->bytes ? a->bytes > b->bytes : a < b; });
  if (found.size() > most) found.resize(most);
  return found;
}

}  // namespace

std::string_view to_string(Brake::Step step) {
  constexpr std::array<std::string_view, 6> kNames = {"off", "no_admission", "trim", "pause_batch", "pause_latency", "end"};
  return kNames[static_cast<std::size_t>(step)];
}

std::vector<BrakeAction> Brake::look(const sys::NodeMemory& node, const std::vector<BrakeSandbox>& sandboxes, Instant now) {
  const std::uint64_t reserve = options_.reserve_bytes;
  if (reserve == 0) return {};
  // A sandbox that fights with its own limit waits too: alone that is nothing to the node.
  const bool waits = node.available_bytes < 2 * reserve && node.stalled_percent > options_.most_stalled_percent;
  const bool is_short = node.available_bytes < reserve || waits;
  const bool calm = node.available_bytes >= reserve + reserve / 4 && (node.available_bytes >= 2 * reserve || node.stalled_percent < options_.most_stalled_percent / 2);
  if (step_ == Step::kOff && !is_short) return {};
  if (calm) {
    step_ = Step::kOff;
    refusal_.clear();
    return {};
  }
  refusal_ = fmt::format("the node's memory is short: {} MiB available, {} MiB are its reserve, tasks waited for memory {:.0f} % of the last 10 s", mib(node.available_bytes),
                         mib(reserve), node.stalled_percent);
  if (step_ == Step::kOff) {
    step_ = Step::kNoAdmission;
    acted_at_ = now;
    return {};
  }
  const bool urgent = node.available_bytes < reserve / 4;
  if (!is_short || now - acted_at_ < (urgent ? options_.patience / 5 : options_.patience)) return {};
  for (const Step step : {Step::kTrim, Step::kPauseBatch, Step::kPauseLatency, Step::kEnd}) {
    std::vector<BrakeAction> actions;
    switch (step) {
      case Step::kTrim: actions = trims(sandboxes); break;
      case Step::kPauseBatch: actions = pauses(sandboxes, true); break;
      case Step::kPauseLatency: actions = pauses(sandboxes, false); break;
      default: actions = end_one(node, sandboxes); break;
    }
    if (actions.empty()) continue;
    step_ = step;
    acted_at_ = now;
    return actions;
  }
  return {};
}

std::vector<BrakeAction> Brake::trims(const std::vector<BrakeSandbox>& sandboxes) const {
  std::vector<BrakeAction> out;
  for (const BrakeSandbox* one : largest(sandboxes, options_.trims_at_once, [&](const BrakeSandbox& s) { return !s.busy && !s.trimmed && s.unused_for >= options_.idle_after; }))
    out.push_back({.kind = BrakeAction::Kind::kTrim, .id = one->id, .why = refusal_});
  return out;
}

std::vector<BrakeAction> Brake::pauses(const std::vector<BrakeSandbox>& sandboxes, bool batch) const {
  std::vector<BrakeAction> out;
  const auto wanted = [&](const BrakeSandbox& s) { return s.batch == batch && !s.busy && (batch || s.unused_for >= options_.idle_after); };
  for (const BrakeSandbox* one : largest(sandboxes, options_.pauses_at_once, wanted)) out.push_back({.kind = BrakeAction::Kind::kPause, .id = one->id, .why = refusal_});
  return out;
}

// The one whose doing it is, of whatever class: most of what was taken in the last minute went to it, and
// it has more than its part. Else the newest batch sandbox, which can help it least.
std::vector<BrakeAction> Brake::end_one(const sys::NodeMemory& node, const std::vector<BrakeSandbox>& sandboxes) const {
  if (sandboxes.empty()) return {};
  std::uint64_t grown = 0;
  const BrakeSandbox* fastest = &sandboxes.front();
  const BrakeSandbox* newest = nullptr;
  for (const BrakeSandbox& one : sandboxes) {
    grown += one.grown_bytes;
    if (one.grown_bytes > fastest->grown_bytes) fastest = &one;
    if (one.batch && (newest == nullptr || one.started_ms > newest->started_ms)) newest = &one;
  }
  const std::uint64_t part = (node.total_bytes - std::min(node.total_bytes, options_.reserve_bytes)) / sandboxes.size();
  if (fastest->grown_bytes >= kSmallestCulprit && fastest->grown_bytes > grown / 2 && fastest->bytes > part)
    return {{.kind = BrakeAction::Kind::kEnd,
             .id = fastest->id,
             .culprit = true,
             .why = fmt::format("it took {} of the {} MiB that went within a minute, as {}", mib(fastest->grown_bytes), mib(grown), refusal_)}};
  if (newest == nullptr) return {};
  return {{.kind = BrakeAction::Kind::kEnd, .id = newest->id, .why = "the newest of the batch class, as " + refusal_}};
}

}  // namespace dsec::edge
