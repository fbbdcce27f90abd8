// Pause and resume: a sandbox whose processes stand, and whose memory goes elsewhere.
//
// The log says what is meant before the kernel is told: paused before the freeze,
// resumed before the thaw. Whoever dies in between leaves a sandbox that is one of
// the two, and the next start makes its cgroup match. Both take their turn in the
// mailbox, so that of any number of calls the last one holds. Memory is given back
// outside of the turn: a resume does not wait for it, it cancels it.

#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "base/fail_point.h"
#include "base/log.h"
#include "edge/live_sandbox.h"
#include "net/blocking.h"

namespace dsec::edge {

using model::SandboxState;

namespace {

constexpr int kThawAttempts = 3;
constexpr auto kTimeoutAgain = std::chrono::seconds(10);

Error ended() { return Error(ErrorCode::kConflict, "the sandbox has ended"); }

std::string mebibytes(std::uint64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20)); }

}  // namespace

asio::awaitable<Result<void>> LiveSandbox::pause(PauseOptions options) {
  const std::shared_ptr<LiveSandbox> self = shared_from_this();
  co_await taken_up();
  ++pauses_coming_;
  const Mailbox::Turn turn = co_await mailbox_.enter();
  --pauses_coming_;
  if (awaits_adoption_) co_return Error(ErrorCode::kUnavailable, "the node is stopping");
  if (over() || end_wanted_) co_return ended();
  if (sandbox_.state == SandboxState::kPaused) co_return change_wake(options);
  if (held()) co_return Error(ErrorCode::kConflict, "the sandbox is held back by a pause of many, and has not begun");
  if (!running()) co_return Error(ErrorCode::kConflict, "the sandbox does not run yet");
  using When = PauseOptions::When;
  const bool void_by_now = (options.when == When::kIfIdle && !is_idle()) || (options.when == When::kIfExpired && !is_expired()) || (options.when == When::kIfUnused && busy());
  if (void_by_now) no_timeout_before_ = {};
  if (void_by_now) co_return Result<void>();

  const Instant begun = context_.clock.now();
  model::Pause pause{.at_ms = context_.now_ms(), .reason = options.reason, .wake = options.wake, .fence = options.fence};
  if (sandbox_.expires_at_ms != 0) pause.left_ms = std::max<std::int64_t>(0, sandbox_.expires_at_ms - pause.at_ms);
  if (Result<std::uint64_t> logged = context_.log(WalType::kPaused, PausedRecord{id(), pause}); !logged.ok()) co_return std::move(logged).error();
  sandbox_.pause = std::move(pause);
  sandbox_.expires_at_ms = 0;
  stands_still_ = true;
  set_state(SandboxState::kPausing, "", "");

  Result<void> frozen = fail_point("edge.pause.logged");
  if (frozen.ok())
    frozen = co_await net::on_pool(context_.freezes, [instance = instance_, patience = context_.limits.freeze_deadline]() -> Result<void> {
      DSEC_TRY(instance->freeze(Deadline::in(patience)));
      Result<void> step = fail_point("edge.pause.frozen");
      if (!step.ok()) DSEC_TRY(instance->thaw(Deadline::in(patience)));
      return step;
    });
  if (end_wanted_ || gone_) co_return ended();
  if (!frozen.ok()) {
    log_that_it_runs();
    run_again("pause_failed", frozen.error().message());
    co_return std::move(frozen).within("let the sandbox stand still");
  }
  no_timeout_before_ = {};
  const auto took = std::chrono::duration_cast<std::chrono::microseconds>(context_.clock.now() - begun);
  set_state(SandboxState::kPaused, "paused",
            fmt::format("{}, in {:.1f} ms{}", options.reason, static_cast<double>(took.count()) / 1000,
                        options.wake == model::Wake::kHolder ? fmt::format("; wakes for fence {} and higher", options.fence) : ""));
  begin_reclaim();
  co_return Result<void>();
}

// After a start its container is not at hand at once: nothing can be done with it before.
asio::awaitable<void> LiveSandbox::taken_up() {
  const std::shared_ptr<LiveSandbox> self = shared_from_this();
  while (awaits_adoption_ && !context_.stopping) co_await changed_.wait(context_.clock.now() + context_.limits.destroy_deadline);
}

// After a pause that came to nothing.
void LiveSandbox::log_that_it_runs() {
  const std::int64_t now = context_.now_ms();
  if (sandbox_.pause->left_ms >= 0) sandbox_.expires_at_ms = now + sandbox_.pause->left_ms;
  const ResumedRecord record{.id = id(), .at_ms = now, .expires_at_ms = sandbox_.expires_at_ms};
  if (Result<std::uint64_t> logged = context_.log(WalType::kResumed, record); !logged.ok())
    log_error("a sandbox that runs on is paused in the log", {{"sandbox", id()}, {"why", logged.error().message()}});
}

// The log says so already, and the payload runs.
void LiveSandbox::run_again(const std::string& event, const std::string& detail) {
  sandbox_.pause.reset();
  last_ping_ = context_.clock.now();
  ping_nonce_ = pong_nonce_;
  set_state(SandboxState::kRunning, event, detail);
  go_on();
  if (start_exec_ != nullptr && start_exec_->finished()) begin_end(model::EndCause::kExit, "the start command has ended");
}

asio::awaitable<Result<void>> LiveSandbox::resume(std::optional<std::uint64_t> fence, std::string by) {
  const std::shared_ptr<LiveSandbox> self = shared_from_this();
  if (held()) co_return release();
  co_await taken_up();
  const Mailbox::Turn turn = co_await mailbox_.enter();
  if (awaits_adoption_) co_return Error(ErrorCode::kUnavailable, "the node is stopping");
  if (over() || end_wanted_) co_return ended();
  if (running()) co_return Result<void>();
  if (sandbox_.state != SandboxState::kPaused) co_return Error(ErrorCode::kConflict, "the sandbox does not run yet");
  DSEC_CO_TRY(may_wake(fence));

  const std::int64_t now = context_.now_ms();
  const std::int64_t paused_ms = now - sandbox_.pause->at_ms;
  std::int64_t left = sandbox_.pause->left_ms;
  if (left == 0) left = sandbox_.spec.lifetime.max_seconds * 1000;  // it was used up: the resume gives it anew
  const ResumedRecord record{.id = id(), .at_ms = now, .expires_at_ms = left > 0 ? now + left : 0};
  if (Result<std::uint64_t> logged = context_.log(WalType::kResumed, record); !logged.ok()) co_return std::move(logged).error();
  sandbox_.expires_at_ms = record.expires_at_ms;
  stop_reclaim();
  touch();
  set_state(SandboxState::kResuming, "", "");

  Result<void> thawed = fail_point("edge.resume.logged");
  for (int attempt = 1; thawed.ok(); ++attempt) {
    thawed = co_await net::on_pool(context_.freezes, [instance = instance_, patience = context_.limits.freeze_deadline]() -> Result<void> {
      DSEC_TRY(instance->thaw(Deadline::in(patience)));
      if (Result<void> step = fail_point("edge.resume.thawed"); !step.ok()) log_warning(step.error().message());
      return {};
    });
    if (thawed.ok() || attempt == kThawAttempts || end_wanted_ || gone_) break;
    log_error("a sandbox cannot be thawed", {{"sandbox", id()}, {"attempt", std::to_string(attempt)}, {"why", thawed.error().message()}});
    thawed = Result<void>();
  }
  if (end_wanted_ || gone_) co_return ended();
  if (!thawed.ok()) {
    sandbox_.pause->left_ms = sandbox_.expires_at_ms == 0 ? -1 : std::max<std::int64_t>(1, sandbox_.expires_at_ms - context_.now_ms());
    sandbox_.expires_at_ms = 0;
    if (Result<std::uint64_t> logged = context_.log(WalType::kPaused, PausedRecord{id(), *sandbox_.pause}); !logged.ok())
      log_error("a sandbox that stands still runs in the log", {{"sandbox", id()}, {"why", logged.error().message()}});
    set_state(SandboxState::kPaused, "resume_failed", thawed.error().message());
    co_return std::move(thawed).within("let the sandbox go on");
  }
  // Beside what runs again already: it waits for nothing that it does not touch.
  if (sandbox_.pause->swapped_bytes != 0) (void)context_.reclaims.submit([instance = instance_] { instance->prefetch(); });
  run_again("resumed", fmt::format("{}, after {:.3f} s", by, static_cast<double>(paused_ms) / 1000));
  co_return Result<void>();
}

asio::awaitable<Result<void>> LiveSandbox::wake(std::optional<std::uint64_t> fence, Instant by) {
  const std::shared_ptr<LiveSandbox> self = shared_from_this();
  while (true) {
    if (held()) co_return Error(ErrorCode::kConflict, "the sandbox is held back by a pause of many: resume it, or them");
    if (!at_rest()) co_return Result<void>();
    if (sandbox_.state != SandboxState::kResuming) DSEC_CO_TRY(may_wake(fence));
    if (context_.stopping) co_return Error(ErrorCode::kUnavailable, "the node is stopping");
    if (context_.clock.now() >= by) co_return Error(ErrorCode::kDeadlineExceeded, "the sandbox was paused and is not back yet: nothing was done");
    if (!waking_ && sandbox_.state != SandboxState::kResuming) {
      waking_ = true;
      asio::co_spawn(context_.io, [self, fence] { return self->wake_up(fence); }, asio::detached);
    }
    const std::uint64_t seen = wakes_ended_;
    co_await changed_.wait(by);
    // Another fence than that one's may be good enough: kConflict is looked at anew.
    if (wakes_ended_ != seen && wake_error_ && wake_error_->code() != ErrorCode::kConflict && at_rest()) co_return *wake_error_;
  }
}

asio::awaitable<void> LiveSandbox::wake_up(std::optional<std::uint64_t> fence) {
  const std::shared_ptr<LiveSandbox> self = shared_from_this();
  const Result<void> resumed = co_await resume(fence, "a request");
  waking_ = false;
  wake_error_.reset();
  if (!resumed.ok()) wake_error_ = resumed.error();
  ++wakes_ended_;
  changed_.notify();
}

Result<void> LiveSandbox::may_wake(std::optional<std::uint64_t> fence) const {
  if (!sandbox_.pause || sandbox_.pause->wake == model::Wake::kAny) return {};
  if (fence && *fence >= sandbox_.pause->fence) return {};
  return Error(ErrorCode::kConflict, fmt::format("the sandbox is paused for the holder of its lease: it wakes for X-Dsec-Fence {} and higher",
                                                 sandbox_.pause->fence));
}

Result<void> LiveSandbox::change_wake(const PauseOptions& options) {
  model::Pause pause = *sandbox_.pause;
  // Who asks for less than stands there gets it: it is paused.
  if (options.wake == model::Wake::kAny || (pause.wake == options.wake && pause.fence == options.fence)) return {};
  pause.wake = options.wake;
  pause.fence = options.fence;
  DSEC_TRY(context_.log(WalType::kPaused, PausedRecord{id(), pause}));
  sandbox_.pause = std::move(pause);
  note_event("wake_changed", fmt::format("{} {}", model::to_string(options.wake), options.fence));
  return {};
}

Result<void> LiveSandbox::raise_fence(std::uint64_t fence) {
  if (fence <= sandbox_.fence) return {};
  DSEC_TRY(context_.log(WalType::kFenced, FencedRecord{id(), fence}));
  sandbox_.fence = fence;
  return {};
}

void LiveSandbox::begin_pause(PauseOptions options) {
  no_timeout_before_ = context_.clock.now() + kTimeoutAgain;  // tried again then, where it fails
  asio::co_spawn(context_.io, [self = shared_from_this(), options] { return self->pause(options); }, asio::detached);
}

void LiveSandbox::begin_reclaim() {
  stop_reclaim();  // a trim's
  reclaim_cancelled_ = std::make_shared<std::atomic<bool>>(false);
  asio::co_spawn(context_.io, [self = shared_from_this(), cancelled = reclaim_cancelled_] { return self->give_memory_back(cancelled); }, asio::detached);
}

void LiveSandbox::stop_reclaim() {
  if (reclaim_cancelled_) reclaim_cancelled_->store(true);
  reclaim_cancelled_.reset();
}

asio::awaitable<void> LiveSandbox::give_memory_back(std::shared_ptr<std::atomic<bool>> cancelled) {
  const std::shared_ptr<LiveSandbox> self = shared_from_this();
  const Result<backend::Reclaimed> done = co_await net::on_pool(
      context_.reclaims, [instance = instance_, cancelled, patience = context_.limits.reclaim_deadline]() -> Result<backend::Reclaimed> {
        if (cancelled->load()) return Error(ErrorCode::kCancelled, "it goes on already");
        DSEC_TRY(fail_point("edge.pause.reclaim"));
        return instance->reclaim(*cancelled, Deadline::in(patience));
      });
  if (cancelled->load() || sandbox_.state != SandboxState::kPaused) co_return;
  if (!done.ok()) {
    note_event("not_reclaimed", done.error().message());
    co_return;
  }
  sandbox_.pause->reclaimed_bytes = static_cast<std::int64_t>(done->before_bytes - std::min(done->before_bytes, done->after_bytes));
  sandbox_.pause->swapped_bytes = static_cast<std::int64_t>(done->swapped_bytes);
  if (Result<std::uint64_t> logged = context_.log(WalType::kPaused, PausedRecord{id(), *sandbox_.pause}); !logged.ok())
    log_warning("what a pause gave back is not in the log", {{"sandbox", id()}, {"why", logged.error().message()}});
  note_event("reclaimed", fmt::format("{} of {}, {} of it to swap", mebibytes(done->before_bytes - std::min(done->before_bytes, done->after_bytes)),
                                      mebibytes(done->before_bytes), mebibytes(done->swapped_bytes)));
  changed_.notify();
}

asio::awaitable<void> LiveSandbox::stand_as_logged() {
  const std::shared_ptr<LiveSandbox> self = shared_from_this();
  if (!at_rest()) co_return co_await thaw_left_frozen();
  const Result<void> frozen = co_await net::on_pool(
      context_.freezes, [instance = instance_, patience = context_.limits.freeze_deadline] { return instance->freeze(Deadline::in(patience)); });
  if (end_wanted_ || gone_) co_return;
  if (frozen.ok()) {
    if (sandbox_.pause->reclaimed_bytes < 0) begin_reclaim();
    co_return;
  }
  log_warning("a paused sandbox does not stand still any more", {{"sandbox", id()}, {"why", frozen.error().message()}});
  set_state(SandboxState::kResuming, "", "");
  log_that_it_runs();
  run_again("pause_failed", frozen.error().message());
}

void LiveSandbox::hold(const std::string& why) {
  const TransitionRecord held{.id = id(), .state = SandboxState::kQueued, .cause = model::EndCause::kNone, .detail = why};
  if (Result<std::uint64_t> logged = context_.log(WalType::kTransition, held); !logged.ok()) {
    begin_end(model::EndCause::kStartFailed, logged.error().message());
    return;
  }
  sandbox_.state = SandboxState::kQueued;
  note_event("queued", why);
}

Result<void> LiveSandbox::release() {
  if (!held()) return {};
  const TransitionRecord starting{.id = id(), .state = SandboxState::kStarting, .cause = model::EndCause::kNone, .detail = {}};
  DSEC_TRY(context_.log(WalType::kTransition, starting));
  set_state(SandboxState::kStarting);
  return {};
}

void LiveSandbox::restore_paused(const PausedRecord& record) {
  sandbox_.state = SandboxState::kPaused;
  sandbox_.pause = record.pause;
  sandbox_.expires_at_ms = 0;
  stands_still_ = true;
}

void LiveSandbox::restore_resumed(const ResumedRecord& record) {
  sandbox_.state = SandboxState::kRunning;
  sandbox_.pause.reset();
  sandbox_.expires_at_ms = record.expires_at_ms;
  stands_still_ = false;
}

}  // namespace dsec::edge
