// The node's memory, looked at every second: who holds how much, whom the brake calls,
// and who has been idle for so long that its memory goes elsewhere.
#include <optional>

#include "base/log.h"
#include "edge/edge.h"
#include "net/blocking.h"

namespace dsec::edge {

namespace {

constexpr std::size_t kTrimsAtOnce = 8;
constexpr auto kSamplePeriod = std::chrono::seconds(5);
constexpr auto kSamplePeriodIdle = std::chrono::seconds(30);
constexpr auto kSamplePeriodShort = std::chrono::seconds(1);
constexpr auto kIdleForSamples = std::chrono::minutes(1);

}  // namespace

asio::awaitable<void> Edge::look_at_memory() {
  const Result<sys::NodeMemory> node = co_await net::on_pool(*calls_, [proc = options_.limits.proc] { return sys::read_node_memory(proc); });
  if (!node.ok()) {
    if (!memory_untold_) log_warning("the node's memory is not watched", {{"why", node.error().message()}});
    memory_untold_ = true;
    co_return;
  }
  node_memory_ = *node;
  co_await sample_memory();
  if (context_.stopping) co_return;
  std::vector<BrakeSandbox> running;
  for (const auto& [id, sandbox] : by_id_)
    if (sandbox->running()) running.push_back(sandbox->for_brake());
  const Brake::Step before = brake_.step();
  for (const BrakeAction& action : brake_.look(node_memory_, running, context_.clock.now())) carry_out(action);
  if (before != brake_.step())
    log_warning("the memory brake", {{"step", std::string(to_string(brake_.step()))}, {"why", brake_.refusal()}});
  trim_idle();
}

// Who is looked at seldom costs little; while memory is short everybody is looked at.
asio::awaitable<void> Edge::sample_memory() {
  const Instant now = context_.clock.now();
  const bool is_short = brake_.step() != Brake::Step::kOff;
  std::vector<std::shared_ptr<LiveSandbox>> due;
  std::vector<std::shared_ptr<backend::Instance>> instances;  // of `due`: they are the loop's to look up
  for (const auto& [id, sandbox] : by_id_) {
    if (!sandbox->running() || sandbox->instance() == nullptr) continue;
    const Duration period = is_short ? Duration(kSamplePeriodShort) : sandbox->unused_for(now) > kIdleForSamples ? Duration(kSamplePeriodIdle) : Duration(kSamplePeriod);
    if (now - sandbox->memory().last_at() < period) continue;
    due.push_back(sandbox);
    instances.push_back(sandbox->instance());
  }
  if (due.empty()) co_return;
  const auto read = co_await net::on_pool(*calls_, [instances = std::move(instances)]() -> Result<std::vector<std::optional<backend::MemoryUse>>> {
    std::vector<std::optional<backend::MemoryUse>> out;
    for (const std::shared_ptr<backend::Instance>& instance : instances) {
      const Result<backend::MemoryUse> use = instance->memory();
      out.push_back(use.ok() ? std::optional(*use) : std::nullopt);
    }
    return out;
  });
  if (!read.ok()) co_return;
  for (std::size_t i = 0; i < due.size(); ++i)
    if ((*read)[i]) due[i]->memory().add(*(*read)[i], now);
}

void Edge::carry_out(const BrakeAction& action) {
  const auto found = by_id_.find(action.id);
  if (found == by_id_.end()) return;
  const std::shared_ptr<LiveSandbox> sandbox = found->second;
  switch (action.kind) {
    case BrakeAction::Kind::kTrim:
      ++brake_trims_;
      return sandbox->begin_trim(action.why);
    case BrakeAction::Kind::kPause:
      ++brake_pauses_;
      return sandbox->begin_pause({.reason = "pressure", .when = LiveSandbox::PauseOptions::When::kIfUnused});
    case BrakeAction::Kind::kEnd:
      ++brake_ends_;
      log_warning("a sandbox is ended for the node's memory", {{"sandbox", action.id}, {"its_doing", action.culprit ? "yes" : "no"}, {"why", action.why}});
      return sandbox->begin_end(action.culprit ? model::EndCause::kOom : model::EndCause::kPressure, action.why);
  }
}

void Edge::trim_idle() {
  if (options_.limits.trim_idle.count() == 0) return;
  const Instant now = context_.clock.now();
  std::size_t begun = 0;
  for (const auto& [id, sandbox] : by_id_) {
    if (begun == kTrimsAtOnce) return;
    if (!sandbox->running() || sandbox->busy() || sandbox->trimmed() || sandbox->unused_for(now) < options_.limits.trim_idle) continue;
    sandbox->begin_trim("idle");
    ++begun;
  }
}

boost::json::object Edge::memory_json() const {
  return {{"total_mb", node_memory_.total_bytes >> 20},
          {"available_mb", node_memory_.available_bytes >> 20},
          {"free_swap_mb", node_memory_.free_swap_bytes >> 20},
          {"reserve_mb", brake_.options().reserve_bytes >> 20},
          {"stalled_percent", node_memory_.stalled_percent},
          {"brake", to_string(brake_.step())},
          {"brake_step", static_cast<int>(brake_.step())},
          {"trims", brake_trims_},
          {"pauses", brake_pauses_},
          {"ends", brake_ends_}};
}

}  // namespace dsec::edge
