// Rollback in place: another container, over a checkpoint's layers, under the same id.
//
// The record of it comes first. From then on the old container is nothing that anybody
// can come back to: a start that finds the record, and no newer container's, goes on from there.

#include "base/fail_point.h"
#include "base/log.h"
#include "edge/edge.h"
#include "edge/file_transfer.h"
#include "net/blocking.h"

namespace dsec::edge {

using model::EndCause;
using model::SandboxState;

asio::awaitable<Result<void>> LiveSandbox::rollback(std::string checkpoint, std::vector<std::string> layer_digests) {
  const std::shared_ptr<LiveSandbox> self = shared_from_this();
  co_await taken_up();
  const Mailbox::Turn turn = co_await mailbox_.enter();
  if (awaits_adoption_) co_return Error(ErrorCode::kUnavailable, "the node is stopping");
  if (over() || end_wanted_) co_return Error(ErrorCode::kConflict, "the sandbox has ended");
  if (!running()) co_return Error(ErrorCode::kConflict, "the sandbox does not run");
  const RolledBackRecord record{.id = id(), .checkpoint = checkpoint, .layer_digests = std::move(layer_digests), .at_ms = context_.now_ms()};
  DSEC_CO_TRY(fail_point("edge.rollback"));
  Result<std::uint64_t> logged = context_.log(WalType::kRolledBack, record);
  if (!logged.ok()) co_return std::move(logged).error();
  rolling_back_ = true;
  accepted_.layer_digests = sandbox_.layer_digests = record.layer_digests;
  sandbox_.rolled_back_at_ms = record.at_ms;
  note_event("rolled_back", checkpoint);
  set_state(SandboxState::kResuming);
  if (Result<void> step = fail_point("edge.rollback.logged"); step.ok())
    co_await put_in_place();
  else
    co_await end_now(EndCause::kStartFailed, step.error().message());
  if (running()) co_return Result<void>();
  co_return Error(end_cause_ == EndCause::kUser ? ErrorCode::kConflict : ErrorCode::kUnavailable, "the sandbox did not come back: " + end_detail_);
}

// In the turn of the caller.
asio::awaitable<void> LiveSandbox::put_in_place() {
  const std::shared_ptr<LiveSandbox> self = shared_from_this();
  for (const auto& [op_id, exec] : std::map(execs_))
    if (!exec->finished()) exec->lose(ExecStatus::kKilled, false, "the sandbox was rolled back");
  for (const auto& [request_id, transfer] : transfers_) transfer->on_lost();
  if (Result<void> gone = co_await take_down(); !gone.ok()) co_return co_await end_now(EndCause::kStartFailed, gone.error().message());
  if (Result<void> step = fail_point("edge.rollback.empty"); !step.ok()) co_return co_await end_now(EndCause::kStartFailed, step.error().message());
  gone_ = false;
  oom_seen_ = 0;
  sessions_.clear();
  start_exec_.reset();
  spare_claim_.reset();
  spare_id_.clear();
  upper_record_.clear();
  last_pack_ = {};
  if (end_wanted_) co_return co_await end_now(end_cause_, end_detail_);
  co_await bring_to_life(context_.clock.now() + context_.limits.launch_deadline);
}

asio::awaitable<Result<model::Sandbox>> Edge::rollback(RollbackCommand command) {
  DSEC_CO_ASSIGN(const std::shared_ptr<LiveSandbox> sandbox, find(command.principal, command.ref));
  const LiveSandbox::Use use(sandbox);
  if (command.fence && !sandbox->passes(*command.fence)) co_return Error(ErrorCode::kConflict, "fenced: a higher fence has been seen");
  if (command.fence) DSEC_CO_TRY(sandbox->raise_fence(*command.fence));
  DSEC_CO_TRY(co_await sandbox->wake(command.fence, context_.clock.now() + options_.limits.resume_deadline));
  DSEC_CO_TRY(co_await sandbox->rollback(std::move(command.checkpoint), std::move(command.layers)));
  co_return sandbox->view();
}

}  // namespace dsec::edge
