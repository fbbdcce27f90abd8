// Pause, resume and stop of all that a selector names, and the holds that a pause leaves.
//
// A pause freezes whoever runs, at once; memory is given back afterwards, by few
// threads. A resume begins no more than memory has room for. Who matches and is
// not there yet stays queued, which costs no memory, as long as the hold stands;
// holds are in the log.

#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "base/log.h"
#include "edge/edge.h"
#include "model/sha256.h"
#include "net/blocking.h"

namespace dsec::edge {

using model::SandboxState;

namespace {

constexpr std::size_t kMostHolds = 1000;  // of a project
constexpr std::uint64_t kRoomOfOne = 256 << 20;
constexpr std::size_t kFewestResumes = 2;
constexpr std::size_t kMostResumes = 64;

std::string hold_id(const std::string& project, const std::string& selector) {
  return "hold-" + model::sha256(project + '\0' + selector).substr(0, 40);
}

}  // namespace

// One bulk call on its way: it may outlast who made it.
struct Edge::BulkWork {
  BulkCommand command;
  Instant by;
  std::vector<std::shared_ptr<LiveSandbox>> members;
  std::vector<std::optional<Result<void>>> outcomes;
  std::size_t next = 0;  // whom nobody has begun with
  std::size_t open = 0;
  Notifier done;
};

const Hold* Edge::holding(const std::string& project, const std::map<std::string, std::string>& labels) const {
  for (const auto& [id, hold] : holds_)
    if (hold.record.project == project && hold.selector.matches(labels)) return &hold;
  return nullptr;
}

std::vector<Hold> Edge::holds(const std::string& project) const {
  std::vector<Hold> out;
  for (const auto& [id, hold] : holds_) {
    if (hold.record.project != project) continue;
    out.push_back(hold);
    for (const auto& [sandbox_id, sandbox] : by_id_)
      out.back().queued += sandbox->held() && sandbox->project() == project && hold.selector.matches(sandbox->view().spec.labels);
  }
  std::sort(out.begin(), out.end(), [](const Hold& a, const Hold& b) {
    return std::pair(a.record.at_ms, a.record.id) < std::pair(b.record.at_ms, b.record.id);
  });
  return out;
}

Result<void> Edge::begin_hold(const BulkCommand& command) {
  DSEC_ASSIGN(model::Selector selector, model::Selector::parse(command.selector));
  HeldRecord record{.id = hold_id(command.principal.project, command.selector),
                    .project = command.principal.project,
                    .selector = command.selector,
                    .reason = command.reason,
                    .wake = command.wake,
                    .fence = command.wake == model::Wake::kHolder ? command.fence.value_or(0) : 0,
                    .at_ms = context_.now_ms()};
  if (const auto known = holds_.find(record.id); known != holds_.end()) {
    const HeldRecord& before = known->second.record;
    if (before.wake == record.wake && before.fence == record.fence && before.reason == record.reason) return {};
    record.at_ms = before.at_ms;
  }
  const auto of_project = std::count_if(holds_.begin(), holds_.end(), [&](const auto& entry) { return entry.second.record.project == record.project; });
  if (static_cast<std::size_t>(of_project) >= kMostHolds && !holds_.contains(record.id))
    return Error(ErrorCode::kExhausted, fmt::format("{} bulk pauses stand in this project: resume some", of_project));
  DSEC_TRY(context_.log(WalType::kHeld, record));
  std::string id = record.id;
  holds_.insert_or_assign(std::move(id), Hold{std::move(record), std::move(selector)});
  return {};
}

Result<void> Edge::end_hold(const BulkCommand& command) {
  const auto found = holds_.find(hold_id(command.principal.project, command.selector));
  if (found == holds_.end()) return {};
  const HeldRecord& record = found->second.record;
  if (record.wake == model::Wake::kHolder && command.fence.value_or(0) < record.fence)
    return Error(ErrorCode::kConflict, fmt::format("this pause waits for the holder of a lease: it ends for X-Dsec-Fence {} and higher", record.fence));
  DSEC_TRY(context_.log(WalType::kHoldEnded, HoldEndedRecord{.id = record.id}));
  holds_.erase(found);
  return {};
}

Result<void> Edge::replay_hold(WalType type, std::string_view body) {
  if (type == WalType::kHoldEnded) {
    DSEC_ASSIGN(const HoldEndedRecord record, decode_record<HoldEndedRecord>(body));
    holds_.erase(record.id);
    return {};
  }
  DSEC_ASSIGN(HeldRecord record, decode_record<HeldRecord>(body));
  DSEC_ASSIGN(model::Selector selector, model::Selector::parse(record.selector));
  std::string id = record.id;
  holds_.insert_or_assign(std::move(id), Hold{std::move(record), std::move(selector)});
  return {};
}

// What comes back from swap has to find room.
asio::awaitable<std::size_t> Edge::resumes_at_once() {
  const Result<sys::NodeMemory> node = co_await net::on_pool(*calls_, [proc = options_.limits.proc] { return sys::read_node_memory(proc); });
  if (!node.ok()) co_return kFewestResumes;
  co_return std::clamp<std::size_t>(node->available_bytes / kRoomOfOne, kFewestResumes, kMostResumes);
}

asio::awaitable<Result<void>> Edge::act_on(std::shared_ptr<LiveSandbox> sandbox, BulkCommand command, Instant by) {
  if (command.fence && !sandbox->over()) {
    if (!sandbox->passes(*command.fence))
      co_return Error(ErrorCode::kConflict, fmt::format("fenced: the sandbox has seen fence {}", sandbox->view().fence));
    DSEC_CO_TRY(sandbox->raise_fence(*command.fence));
  }
  switch (command.verb) {
    case BulkCommand::Verb::kPause:
      if (sandbox->held()) co_return Result<void>();  // it does not run, and does not begin to
      co_return co_await sandbox->pause({.reason = command.reason,
                                         .wake = command.wake,
                                         .fence = command.wake == model::Wake::kHolder ? command.fence.value_or(0) : 0});
    case BulkCommand::Verb::kStop:
      co_await sandbox->end(model::EndCause::kUser, command.reason == "user" ? "" : command.reason);
      co_return Result<void>();
    case BulkCommand::Verb::kResume: break;
  }
  if (!sandbox->held()) co_return co_await sandbox->resume(command.fence, command.reason);
  if (const Hold* hold = holding(sandbox->project(), sandbox->view().spec.labels))
    co_return Error(ErrorCode::kConflict, hold->record.selector.empty() ? "held back by the pause of all" : "held back by the pause of \"" + hold->record.selector + "\"");
  DSEC_CO_TRY(sandbox->release());
  while (sandbox->state() == SandboxState::kStarting && context_.clock.now() < by) co_await sandbox->changed().wait(by);
  if (sandbox->over()) co_return Error(ErrorCode::kUnavailable, "the sandbox did not start: " + sandbox->view().end_detail);
  co_return Result<void>();
}

// As many of these run at once as members may be on their way.
asio::awaitable<void> Edge::work_off(std::shared_ptr<BulkWork> work) {
  while (work->next < work->members.size() && context_.clock.now() < work->by && !context_.stopping) {
    const std::size_t i = work->next++;
    work->outcomes[i] = co_await act_on(work->members[i], work->command, work->by);
    if (--work->open == 0) work->done.notify();
  }
}

asio::awaitable<Result<std::vector<BulkResult>>> Edge::bulk(BulkCommand command) {
  using Verb = BulkCommand::Verb;
  DSEC_CO_ASSIGN(const model::Selector selector, model::Selector::parse(command.selector));
  if (command.verb == Verb::kPause) DSEC_CO_TRY(begin_hold(command));
  if (command.verb == Verb::kResume) DSEC_CO_TRY(end_hold(command));
  const auto work = std::make_shared<BulkWork>();
  work->command = command;
  work->by = context_.clock.now() + command.within;
  for (const auto& [place, sandbox] : by_time_) {
    if (sandbox->project() != command.principal.project || sandbox->state() == SandboxState::kEnded) continue;
    if (sandbox->over() && command.verb != Verb::kStop) continue;
    if (selector.matches(sandbox->view().spec.labels)) work->members.push_back(sandbox->shared_from_this());
  }
  work->outcomes.resize(work->members.size());
  work->open = work->members.size();

  std::size_t at_once = work->members.size();
  if (command.verb == Verb::kResume) at_once = std::min(at_once, co_await resumes_at_once());
  for (std::size_t i = 0; i < at_once; ++i) asio::co_spawn(parts_.io, [this, work] { return work_off(work); }, asio::detached);
  while (work->open > 0 && !context_.stopping && context_.clock.now() < work->by) co_await work->done.wait(work->by);

  std::vector<BulkResult> results;
  results.reserve(work->members.size());
  for (std::size_t i = 0; i < work->members.size(); ++i) {
    const model::Sandbox& view = work->members[i]->view();
    results.push_back({.id = view.id, .name = view.spec.name, .state = view.state, .error = {}});
    if (work->outcomes[i]) {
      if (!work->outcomes[i]->ok()) results.back().error = work->outcomes[i]->error();
    } else if (i >= work->next) {
      results.back().error = Error(ErrorCode::kDeadlineExceeded, "not begun by the deadline, and given up: call again");
    } else {
      results.back().error = Error(ErrorCode::kDeadlineExceeded, "not done by the deadline; it goes on");
    }
  }
  work->next = work->members.size();
  co_return results;
}

}  // namespace dsec::edge
