// The lifecycle of a sandbox: launch, adoption after a restart, loss and end.

#include <sys/wait.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "base/fail_point.h"
#include "base/log.h"
#include "edge/file_transfer.h"
#include "edge/live_sandbox.h"
#include "net/blocking.h"
#include "sys/file.h"
#include "sys/process.h"

namespace dsec::edge {

using model::EndCause;
using model::SandboxState;
using protocol::MessageType;

namespace {

// For the coroutine forms below: the frame owns the sandbox.
using Self = std::shared_ptr<LiveSandbox>;

constexpr int kDestroyAttempts = 5;

// Whose fault a start was that failed. What the sandbox is made of is the caller's choice.
EndCause cause_of_failed_start(const Error& error) {
  if (error.code() == ErrorCode::kExhausted) return EndCause::kPressure;
  return error.code() == ErrorCode::kInvalidArgument ? EndCause::kExit : EndCause::kStartFailed;
}

}  // namespace

asio::awaitable<void> LiveSandbox::launch() {
  const Self self = shared_from_this();
  awaits_adoption_ = false;
  changed_.notify();
  // Held before its turn: its end has a turn of its own meanwhile.
  while (held() && !end_wanted_ && !context_.stopping) co_await changed_.wait(kNoInstant);
  if (held() && !end_wanted_) co_return;
  const Mailbox::Turn turn = co_await mailbox_.enter();
  if (over()) co_return;
  if (end_wanted_) co_return co_await end_now(end_cause_, end_detail_);

  const Instant by = context_.clock.now() + context_.limits.launch_deadline;
  while (!context_.swept && !end_wanted_ && context_.clock.now() < by) co_await context_.swept_now.wait(by);
  if (end_wanted_) co_return co_await end_now(end_cause_, end_detail_);
  if (!context_.swept) co_return co_await end_now(EndCause::kStartFailed, "the node was still taking up what an earlier run had left");
  co_await bring_to_life(by);
}

asio::awaitable<void> LiveSandbox::bring_to_life(Instant by) {
  const Self self = shared_from_this();
  Result<Launched> launched = co_await net::on_pool(context_.launches, [self, by]() -> Result<Launched> {
    DSEC_TRY(fail_point("edge.launch"));
    return self->owner_.launch_blocking(self->accepted_, Deadline::at(by));
  });
  if (!launched.ok()) co_return co_await end_now(cause_of_failed_start(launched.error()), launched.error().message());
  instance_ = std::move(launched->instance);
  spare_ = std::move(launched->first_operation);
  backend_record_ = launched->record.backend_record;
  upper_record_ = launched->record.upper_record;
  rolling_back_ = false;
  launched->record.id = id();
  Result<void> step = fail_point("edge.launched");
  if (step.ok()) {
    if (Result<std::uint64_t> logged = context_.log(WalType::kLaunched, launched->record); !logged.ok()) step = std::move(logged).error();
  }
  if (!step.ok()) co_return co_await end_now(EndCause::kStartFailed, step.error().message());
  watch_pidfd();
  co_await bring_up(std::move(launched->agent), Greeting::kSent, by);
}

// From a connected agent to a running sandbox, or to its end.
asio::awaitable<void> LiveSandbox::bring_up(sys::Fd agent, Greeting hello, Instant by) {
  const Self self = shared_from_this();
  attach(std::move(agent), hello);
  while (!greeted_ && !end_wanted_ && !gone_ && context_.clock.now() < by) {
    if (channel_ == nullptr || !channel_->open()) {
      // Before its first answer nothing of the payload ran: the platform's failure.
      co_return co_await end_now(end_wanted_ ? end_cause_ : EndCause::kStartFailed, "the agent closed its first connection");
    }
    co_await changed_.wait(by);
  }
  if (end_wanted_) co_return co_await end_now(end_cause_, end_detail_);
  if (!greeted_) co_return co_await end_now(EndCause::kStartFailed, gone_ ? "the agent ended before it was ready" : "the agent was not ready in time");

  if (Result<void> network = co_await owner_.connect_network(self); !network.ok())
    co_return co_await end_now(cause_of_failed_start(network.error()), "network: " + network.error().message());
  if (sandbox_.spec.start) {
    start_start_command();
    const Instant ready_by = context_.clock.now() + context_.limits.ready_deadline;
    if (Result<void> ready = co_await wait_until_ready(ready_by); !ready.ok()) {
      if (end_wanted_) co_return co_await end_now(end_cause_, end_detail_);
      // The sandbox's own command is to blame, not the platform.
      co_return co_await end_now(EndCause::kExit, ready.error().message());
    }
  }
  if (end_wanted_) co_return co_await end_now(end_cause_, end_detail_);
  become_running();
  if (gone_) co_await end_after_loss("PID 1 has ended");
}

void LiveSandbox::become_running() {
  const std::int64_t now = context_.now_ms();
  // One that was rolled back has started once.
  StartedRecord record{.id = id(), .at_ms = sandbox_.started_at_ms, .expires_at_ms = sandbox_.expires_at_ms};
  if (record.at_ms == 0) {
    record.at_ms = now;
    if (sandbox_.spec.lifetime.max_seconds > 0) record.expires_at_ms = now + sandbox_.spec.lifetime.max_seconds * 1000;
  }
  if (Result<void> step = fail_point("edge.started"); !step.ok()) {
    begin_end(EndCause::kStartFailed, step.error().message());
    return;
  }
  if (Result<std::uint64_t> logged = context_.log(WalType::kStarted, record); !logged.ok()) {
    begin_end(EndCause::kStartFailed, logged.error().message());
    return;
  }
  sandbox_.started_at_ms = record.at_ms;
  sandbox_.expires_at_ms = record.expires_at_ms;
  touch();
  last_ping_ = context_.clock.now();
  set_state(SandboxState::kRunning);
  prepare_operation();
}

std::string hello_frame(const AcceptedRecord& accepted, std::uint64_t epoch) {
  return protocol::encode_frame(
      MessageType::kHello, protocol::encode(protocol::Hello{.secret = accepted.secret, .epoch = epoch, .no_new_privs = accepted.spec.no_new_privs}));
}

void LiveSandbox::attach(sys::Fd socket, Greeting hello) {
  if (channel_ != nullptr) channel_->close();
  greeted_ = false;
  hello_operations_.clear();
  channel_ = std::make_shared<AgentChannel>(context_.io, std::move(socket), *this, context_.scratch);
  if (hello == Greeting::kOwed) channel_->send_frame(hello_frame(accepted_, context_.epoch));
  channel_->start();
}

void LiveSandbox::on_hello(const protocol::HelloReply& reply) {
  for (const protocol::OperationStatus& status : reply.operations) hello_operations_.push_back(status);
  for (const std::string& session : reply.sessions) sessions_.insert(session);
  if (reply.more) return;
  greeted_ = true;
  ping_nonce_ = pong_nonce_;
  last_ping_ = context_.clock.now();
  resume_execs();
  changed_.notify();
}

asio::awaitable<Result<void>> LiveSandbox::connect(Instant by) {
  const Self self = shared_from_this();
  const std::shared_ptr<backend::Instance> instance = instance_;
  Result<sys::Fd> socket = co_await net::on_pool(context_.calls, [instance, by] { return instance->dial_agent(Deadline::at(by)); });
  if (!socket.ok()) co_return std::move(socket).error();
  attach(std::move(socket).value(), Greeting::kOwed);
  while (!greeted_ && !gone_ && channel_->open() && context_.clock.now() < by) co_await changed_.wait(by);
  if (greeted_) co_return Result<void>();
  channel_->close();
  co_return Error(ErrorCode::kUnavailable, "the agent did not answer");
}

void LiveSandbox::on_channel_lost(const std::string& why) {
  greeted_ = false;
  for (const auto& [request_id, transfer] : transfers_) transfer->on_lost();
  changed_.notify();
  if ((running() || at_rest()) && !reconnecting_ && !end_wanted_) {
    reconnecting_ = true;
    asio::co_spawn(context_.io, [self = shared_from_this(), why] { return self->reconnect(why); }, asio::detached);
  }
}

asio::awaitable<void> LiveSandbox::reconnect(std::string why) {
  const Self self = shared_from_this();
  const Instant by = context_.clock.now() + context_.limits.channel_deadline;
  Duration pause = std::chrono::milliseconds(10);
  while (!gone_ && !end_wanted_ && context_.clock.now() < by) {
    const Result<void> connected = co_await connect(by);
    if (connected.ok()) {
      reconnecting_ = false;
      note_event("reconnected", why);
      co_return;
    }
    why = connected.error().message();
    co_await changed_.wait(std::min(by, context_.clock.now() + pause));
    pause = std::min<Duration>(pause * 2, std::chrono::milliseconds(500));
  }
  reconnecting_ = false;
  if (end_wanted_) co_return;
  const Mailbox::Turn turn = co_await mailbox_.enter();
  if (!over()) co_await end_after_loss(why);
}

void LiveSandbox::watch_pidfd() {
  Result<sys::Fd> copy = sys::duplicate(instance_->pidfd());
  if (!copy.ok()) {
    log_warning("a sandbox's process cannot be watched", {{"sandbox", id()}, {"why", copy.error().message()}});
    return;
  }
  pidfd_.assign(copy->release());
  pidfd_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [weak = weak_from_this()](boost::system::error_code failed) {
    const Self self = weak.lock();
    if (failed || !self || self->over()) return;
    if (!sys::process_ended(self->instance_->pidfd())) {  // believed when the kernel says so twice
      sys::Fd(self->pidfd_.release()).reset();
      return self->watch_pidfd();
    }
    self->gone_ = true;
    self->give_up_pack();
    self->changed_.notify();
    if ((!self->running() && !self->at_rest()) || self->end_wanted_) return;
    asio::co_spawn(
        self->context_.io,
        [](Self sandbox) -> asio::awaitable<void> {
          const Mailbox::Turn turn = co_await sandbox->mailbox_.enter();
          if (!sandbox->over()) co_await sandbox->end_after_loss("PID 1 has ended");
        }(self),
        asio::detached);
  });
}

// Only what the host knows decides: nothing that happens inside can make an ending infra.
asio::awaitable<void> LiveSandbox::end_after_loss(std::string why) {
  const Self self = shared_from_this();
  const std::shared_ptr<backend::Instance> instance = instance_;
  Result<backend::EndEvidence> evidence = co_await net::on_pool(context_.calls, [instance] { return instance->evidence(); });
  EndCause cause = EndCause::kEnvDestroyed;
  if (evidence.ok() && evidence->wait_status) {
    const int status = *evidence->wait_status;
    why += WIFSIGNALED(status) ? " by signal " + std::to_string(WTERMSIG(status)) : " with status " + std::to_string(WEXITSTATUS(status));
  }
  if (end_wanted_) {
    cause = end_cause_;
    why = end_detail_;
  } else if (evidence.ok() && evidence->killed_by_platform) {
    cause = EndCause::kAgentLost;
  } else if (evidence.ok() && evidence->ended && evidence->oom_kills > oom_seen_) {
    cause = EndCause::kOom;
    why = "memory limit " + std::to_string(sandbox_.spec.resources.memory_mb) + " MiB";
  } else if (start_exec_ != nullptr && start_exec_->finished()) {
    cause = EndCause::kExit;
    why = "the start command has ended";
  }
  co_await end_now(cause, std::move(why));
}

asio::awaitable<void> LiveSandbox::end(EndCause cause, std::string detail) {
  const Self self = shared_from_this();
  if (sandbox_.state == SandboxState::kEnded) co_return;
  if (!end_wanted_) {
    end_wanted_ = true;
    end_cause_ = cause;
    end_detail_ = std::move(detail);
    give_up_pack();
    changed_.notify();
  }
  // Its container is not at hand: readopt() ends it then.
  while (awaits_adoption_) co_await changed_.wait(context_.clock.now() + context_.limits.destroy_deadline);
  const Mailbox::Turn turn = co_await mailbox_.enter();
  if (sandbox_.state != SandboxState::kEnded) co_await end_now(end_cause_, end_detail_);
}

void LiveSandbox::begin_end(EndCause cause, std::string detail) {
  if (end_wanted_ || sandbox_.state == SandboxState::kEnded) return;
  end_wanted_ = true;
  end_cause_ = cause;
  end_detail_ = detail;
  give_up_pack();
  changed_.notify();
  asio::co_spawn(context_.io, [self = shared_from_this(), cause, detail] { return self->end(cause, detail); }, asio::detached);
}

void LiveSandbox::fail_open_work(EndCause cause, const std::string& why) {
  for (const auto& [request_id, transfer] : transfers_) transfer->on_lost();
  const bool asked = cause == EndCause::kUser || cause == EndCause::kTtl || cause == EndCause::kIdle || cause == EndCause::kExit;
  const std::string text = "the sandbox ended: " + std::string(model::to_string(cause)) + (why.empty() ? "" : ": " + why);
  std::vector<std::shared_ptr<Exec>> open;
  for (const auto& [op_id, exec] : execs_)
    if (!exec->finished()) open.push_back(exec);
  for (const std::shared_ptr<Exec>& exec : open)
    exec->lose(cause == EndCause::kOom ? ExecStatus::kOom : asked ? ExecStatus::kKilled : ExecStatus::kLost, model::is_infra(cause), text);
}

asio::awaitable<void> LiveSandbox::end_now(EndCause cause, std::string detail) {
  const Self self = shared_from_this();
  end_wanted_ = true;
  end_cause_ = cause;
  end_detail_ = detail;
  sandbox_.cause = cause;
  sandbox_.end_detail = detail;
  stop_reclaim();
  sandbox_.pause.reset();
  const TransitionRecord ending{.id = id(), .state = SandboxState::kEnding, .cause = cause, .detail = detail};
  if (Result<std::uint64_t> logged = context_.log(WalType::kTransition, ending); !logged.ok())
    log_error("an ending is not in the log", {{"sandbox", id()}, {"why", logged.error().message()}});
  if (Result<void> step = fail_point("edge.ending"); !step.ok()) log_warning(step.error().message());
  if (sandbox_.state != SandboxState::kEnding) set_state(SandboxState::kEnding);
  fail_open_work(cause, detail);
  const Result<void> gone = co_await take_down();
  // The next start sweeps what is left; the caller is not kept waiting for it.
  if (!gone.ok()) log_error("what is left of a sandbox is removed at the next start", {{"sandbox", id()}, {"why", gone.error().message()}});

  sandbox_.ended_at_ms = context_.now_ms();
  if (Result<std::uint64_t> logged =
          context_.log(WalType::kEnded, EndedRecord{.id = id(), .cause = cause, .detail = detail, .at_ms = sandbox_.ended_at_ms});
      !logged.ok())
    log_error("an end is not in the log", {{"sandbox", id()}, {"why", logged.error().message()}});
  channel_.reset();
  spare_claim_.reset();
  if (cause == EndCause::kUser) {
    // Nobody will ask for its commands; other endings keep them for the one who did not ask for the end.
    execs_.clear();
    exec_order_.clear();
    exec_keys_.clear();
    start_exec_.reset();
    running_execs_ = 0;
    spool_.remove();
    events_.clear();
  }
  set_state(SandboxState::kEnded);
}

asio::awaitable<Result<void>> LiveSandbox::take_down() {
  const Self self = shared_from_this();
  owner_.disconnect_network(*this);
  // Closed when the agent is gone: told before, it would only wake up to be killed.
  sys::Fd agent = channel_ != nullptr ? channel_->release() : sys::Fd();
  greeted_ = false;
  // Not close(): it leaves it to the kernel to take the descriptor out of the loop's
  // epoll set, which keeps it as long as the instance has a duplicate. The end of this
  // process would be told to whoever has the loop's record of it by then, and that
  // was another sandbox, ended as destroyed.
  sys::Fd(pidfd_.is_open() ? pidfd_.release() : -1).reset();

  const auto operations = std::make_shared<std::vector<std::shared_ptr<backend::Operation>>>();
  if (spare_) operations->push_back(std::move(spare_));
  for (const auto& [op_id, exec] : execs_)
    if (exec->processes()) {
      operations->push_back(exec->processes());
      exec->give_processes(nullptr);
    }
  lingering_.clear();
  Result<void> outcome;
  Duration pause = std::chrono::milliseconds(20);
  for (int attempt = 1;; ++attempt) {
    const Result<void> destroyed = co_await net::on_pool(
        context_.launches, [self, instance = instance_, operations]() -> Result<void> {
          DSEC_TRY(fail_point("edge.destroy"));
          if (instance) DSEC_TRY(instance->destroy(Deadline::in(self->context_.limits.destroy_deadline)));
          operations->clear();
          if (!self->upper_record_.empty()) DSEC_TRY(self->owner_.remove_upper(self->accepted_.id, self->upper_record_));
          return fail_point("edge.destroyed");
        });
    if (destroyed.ok()) break;
    log_error("a sandbox cannot be removed",
              {{"sandbox", id()}, {"attempt", std::to_string(attempt)}, {"why", destroyed.error().message()}});
    if (attempt == kDestroyAttempts) {
      outcome = destroyed.error();
      break;
    }
    co_await changed_.wait(context_.clock.now() + pause);
    pause *= 4;
  }
  if (!operations->empty()) {
    const Result<void> queued = context_.calls.submit([operations] { operations->clear(); });
    if (!queued.ok()) operations->clear();
  }
  agent.reset();
  instance_.reset();
  co_return outcome;
}

asio::awaitable<Result<void>> LiveSandbox::wait_until_ready(Instant by) {
  const Self self = shared_from_this();
  const model::StartCommand start = *sandbox_.spec.start;
  if (start.ready_port == 0 && start.ready_command.empty()) co_return Result<void>();
  // Nothing tells the host of a listening socket or of a condition inside: tried again, ever more rarely.
  Duration pause = std::chrono::milliseconds(5);
  while (context_.clock.now() < by) {
    if (end_wanted_) co_return Error(ErrorCode::kCancelled, "the sandbox is ending");
    if (gone_) co_return Error(ErrorCode::kUnavailable, "the sandbox ended before it was ready");
    if (start_exec_->finished()) co_return Error(ErrorCode::kUnavailable, "the start command ended before it was ready");
    if (start.ready_port != 0) {
      const Instant dial_by = std::min(by, context_.clock.now() + std::chrono::seconds(2));
      const Result<sys::Fd> dialled = co_await net::on_pool(
          context_.calls, [instance = instance_, dial_by, port = start.ready_port] { return instance->dial_port(port, Deadline::at(dial_by)); });
      if (dialled.ok()) co_return Result<void>();
    } else {
      ExecRequest probe{.shell = start.ready_command};
      probe.timeout_ms = 10'000;
      probe.output_limit_bytes = 64 << 10;
      Result<Started> started = start_exec(std::move(probe), "");
      if (!started.ok()) co_return std::move(started).error();
      const std::shared_ptr<Exec> exec = started->exec;
      while (!exec->finished() && !end_wanted_ && !gone_ && context_.clock.now() < by) co_await exec->changed().wait(by);
      if (exec->finished() && exec->status() == ExecStatus::kExited && exec->result().exit_code == 0) co_return Result<void>();
    }
    co_await changed_.wait(std::min(by, context_.clock.now() + pause));
    pause = std::min<Duration>(pause * 2, std::chrono::milliseconds(500));
  }
  co_return Error(ErrorCode::kDeadlineExceeded, "the start command was not ready in time");
}

asio::awaitable<void> LiveSandbox::readopt(std::shared_ptr<backend::Instance> instance, bool same_boot) {
  const Self self = shared_from_this();
  const Mailbox::Turn turn = co_await mailbox_.enter();
  awaits_adoption_ = false;
  changed_.notify();
  instance_ = std::move(instance);
  owner_.note_earlier_data_faults(*this);
  if (instance_ == nullptr) {
    if (end_wanted_) co_return co_await end_now(end_cause_, end_detail_);
    if (same_boot && rolling_back_) co_return co_await put_in_place();
    if (!same_boot) co_return co_await end_now(EndCause::kNodeLost, "the machine was restarted");
    if (backend_record_.empty()) co_return co_await end_now(EndCause::kStartFailed, "the edge was restarted during the launch");
    co_return co_await end_now(EndCause::kEnvDestroyed, "it ended while the edge was restarted");
  }
  if (end_wanted_) co_return co_await end_now(end_cause_, end_detail_);
  if (rolling_back_) co_return co_await put_in_place();
  watch_pidfd();
  const Instant by = context_.clock.now() + context_.limits.channel_deadline;
  if (!running() && !at_rest()) {
    Result<sys::Fd> socket = co_await net::on_pool(context_.calls, [held = instance_, by] { return held->dial_agent(Deadline::at(by)); });
    if (!socket.ok()) co_return co_await end_now(EndCause::kStartFailed, socket.error().message());
    co_return co_await bring_up(std::move(socket).value(), Greeting::kOwed, by);
  }
  co_await stand_as_logged();
  // The operations' cgroups first: what the agent then says can be acted upon.
  for (const auto& [op_id, exec] : execs_) {
    if (exec->finished()) continue;
    Result<std::unique_ptr<backend::Operation>> found =
        co_await net::on_pool(context_.calls, [held = instance_, record = exec->processes_record.empty() ? op_id : exec->processes_record] {
          return held->find_operation(record);
        });
    if (found.ok()) exec->give_processes(std::shared_ptr<backend::Operation>(std::move(found).value()));
  }
  if (Result<void> network = co_await owner_.connect_network(self); !network.ok())
    log_warning("a sandbox's network was not taken up again", {{"sandbox", id()}, {"why", network.error().message()}});
  Result<void> connected = Error(ErrorCode::kUnavailable, "not tried");
  Duration pause = std::chrono::milliseconds(10);
  while (!connected.ok() && !gone_ && !end_wanted_ && context_.clock.now() < by) {
    connected = co_await connect(by);
    if (connected.ok()) break;
    co_await changed_.wait(std::min(by, context_.clock.now() + pause));
    pause *= 2;
  }
  if (end_wanted_) co_return co_await end_now(end_cause_, end_detail_);
  if (!connected.ok()) co_return co_await end_after_loss(connected.error().message());
  note_event("adopted", "the edge was restarted");
  if (start_exec_ != nullptr && start_exec_->finished()) begin_end(EndCause::kExit, "the start command has ended");
  prepare_operation();
}

}  // namespace dsec::edge
