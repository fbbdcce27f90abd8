#include "edge/exec.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>

#include "base/errno_text.h"
#include "base/log.h"
#include "edge/live_sandbox.h"
#include "net/blocking.h"

namespace dsec::edge {
namespace {

using protocol::MessageType;
using std::chrono::duration_cast;
using std::chrono::microseconds;

constexpr std::size_t kSpillBytes = 16 << 10;  // of a stream's tail
constexpr std::size_t kStdinWindow = protocol::kOutputWindow;
constexpr std::size_t kCommandText = 200;
// A command that lives this long gets a pressure reading to compare with.
constexpr auto kStallBaseline = std::chrono::milliseconds(50);

std::string describe(const ExecRequest& request) {
  std::string text = request.shell;
  for (const std::string& part : request.argv) {
    if (!text.empty()) text += ' ';
    text += part;
    if (text.size() > kCommandText) break;
  }
  if (text.size() > kCommandText) {
    text.resize(kCommandText);
    text += "…";
  }
  return text;
}

std::uint64_t usec(Duration d) {
  const auto value = duration_cast<microseconds>(d).count();
  return value > 0 ? static_cast<std::uint64_t>(value) : 0;
}

}  // namespace

std::string_view to_string(ExecStatus status) {
  switch (status) {
    case ExecStatus::kRunning: return "running";
    case ExecStatus::kExited: return "exited";
    case ExecStatus::kSignaled: return "signaled";
    case ExecStatus::kTimedOut: return "timed_out";
    case ExecStatus::kKilled: return "killed";
    case ExecStatus::kOom: return "oom";
    case ExecStatus::kLost: return "lost";
    case ExecStatus::kFailed: return "failed";
  }
  return "lost";
}

Exec::Exec(LiveSandbox& sandbox, std::string id, ExecRequest request)
    : sandbox_(sandbox),
      id_(std::move(id)),
      request_(std::move(request)),
      command_(describe(request_)),
      room_(request_.output_limit_bytes),
      timer_(sandbox.context().io) {
  result_.op_id = id_;
  stdin_ = request_.stdin_bytes;
  request_.stdin_bytes.clear();
  request_.stdin_bytes.shrink_to_fit();
  stdin_ending_ = request_.stdin_given && !request_.open_stdin;
}

Exec::~Exec() = default;

void Exec::accepted(std::int64_t at_ms) {
  accepted_at_ms_ = at_ms;
  accepted_at_ = sandbox_.context().clock.now() - std::chrono::milliseconds(sandbox_.context().now_ms() - at_ms);
  started_at_ = accepted_at_;
  if (request_.deadline_ms > 0) arm();
}

void Exec::start() {
  if (finished() || !sandbox_.channel_open() || sandbox_.holds_back(shared_from_this())) return;
  protocol::ExecStart message{.op_id = id_,
                              .argv = request_.argv,
                              .shell = request_.shell,
                              .session = request_.session,
                              .env = sandbox_.exec_environment(request_),
                              .cwd = request_.cwd.empty() && request_.session.empty() ? sandbox_.default_cwd() : request_.cwd,
                              .user = request_.user.empty() ? sandbox_.default_user() : request_.user,
                              .open_stdin = request_.stdin_given || request_.open_stdin || request_.terminal.wanted,
                              .terminal = request_.terminal};
  const int cgroup = processes_ ? processes_->cgroup_fd() : -1;
  message.with_cgroup = cgroup >= 0;
  std::string body = protocol::encode(message);
  if (body.size() > protocol::kMaxExecStartBody) {
    fail("limit", E2BIG, "arguments and environment, the sandbox's own included, are larger than 1.3 MiB");
    return;
  }
  sandbox_.send(MessageType::kExecStart, body, cgroup);
  sent_ = true;
  stdin_sent_ = 0;
  stdin_end_sent_ = false;
  pump_stdin();
}

void Exec::fail(const std::string& stage, int error_number, const std::string& message) {
  on_failed({.op_id = id_, .stage = stage, .error_number = error_number, .message = message});
}

void Exec::reattach(const protocol::OperationStatus& status) {
  sent_ = true;
  if (status.pid != 0) pid_ = status.pid;
  if (status.state == protocol::OperationState::kExited) {
    needed_[0] = status.stdout_bytes;
    needed_[1] = status.stderr_bytes;
  }
  stdin_sent_ = 0;
  stdin_end_sent_ = false;
  acknowledged_[0] = acknowledged_[1] = 0;
  acknowledge();
  if (finished()) {
    released_ = false;
    release_if_done();
    return;
  }
  pump_stdin();
  arm();
  if (kill_reason_ != KillReason::kNone) {
    const KillReason reason = std::exchange(kill_reason_, KillReason::kNone);
    kill(reason);
  }
}

void Exec::on_started(const protocol::ExecStarted& message) {
  if (finished() || pid_ != 0) return;
  pid_ = message.pid;
  const auto since_accepted = duration_cast<microseconds>(sandbox_.context().clock.now() - accepted_at_);
  const auto age = std::clamp(microseconds(message.age_usec), microseconds(0), std::max(since_accepted, microseconds(0)));
  started_at_ = sandbox_.context().clock.now() - age;
  result_.started_at_ms = sandbox_.context().now_ms() - duration_cast<std::chrono::milliseconds>(age).count();
  if (request_.timeout_ms > 0 || request_.deadline_ms > 0) arm();
  changed_.notify();
}

void Exec::on_failed(const protocol::ExecFailed& message) {
  if (finished()) return;
  for (OutputStream& stream : streams_) stream.set_ended();
  if (kill_reason_ != KillReason::kNone) {
    finish(kill_reason_ == KillReason::kCaller ? ExecStatus::kKilled : ExecStatus::kTimedOut);
    return;
  }
  result_.exit_code = message.stage == "exec" && message.error_number == ENOENT ? 127 : 126;
  result_.error = message.stage + ": " + message.message;
  if (message.error_number != 0 && message.message.empty()) result_.error += errno_text(message.error_number);
  finish(ExecStatus::kFailed);
}

void Exec::on_output(const protocol::Output& message) {
  const int index = message.stream == protocol::OutputStream::kStdout ? 0 : 1;
  OutputStream& stream = streams_[index];
  stream.take(message.offset, message.bytes, room_);
  if (message.end) stream.set_ended();
  if (stream.tail_bytes() >= kSpillBytes || (room_ == 0 && stream.tail_bytes() > 0)) {
    if (Result<void> spilled = stream.spill(sandbox_.spool(), id_); !spilled.ok()) {
      if (stream.tail_bytes() >= 4 * kSpillBytes || spilled.error().code() != ErrorCode::kExhausted) stream.stop_storing();
      if (sandbox_.note_spool_error())
        log_warning("output is not stored any more", {{"sandbox", sandbox_.id()}, {"why", spilled.error().message()}});
    }
  }
  acknowledge();
  changed_.notify();
  if (exited_) settle_soon();
  if (finished()) release_if_done();
}

void Exec::acknowledge() {
  if (released_ || !sent_) return;
  for (int i = 0; i < 2; ++i) {
    const std::uint64_t stored = streams_[i].acknowledged();
    if (stored <= acknowledged_[i]) continue;
    acknowledged_[i] = stored;
    sandbox_.send(MessageType::kOutputAck,
                  protocol::encode(protocol::OutputAck{
                      .op_id = id_, .stream = i == 0 ? protocol::OutputStream::kStdout : protocol::OutputStream::kStderr, .offset = stored}));
  }
}

void Exec::on_exited(const protocol::Exited& message) {
  if (finished()) {
    release_if_done();
    return;
  }
  if (exited_) return;
  exited_ = message;
  exited_at_ = sandbox_.context().clock.now();
  settle_soon();
}

// The agent tells the exit when it has sent all that the command itself wrote, so
// the result is whole at once, whoever still holds the pipes. Only after a
// reconnect may the exit be known before output that is sent again.
void Exec::settle_soon() {
  if (finished() || settling_) return;
  if (ended() || (streams_[0].total() >= needed_[0] && streams_[1].total() >= needed_[1])) return settle();
  timer_.expires_at(exited_at_ + sandbox_.context().limits.resend_grace);
  timer_.async_wait([self = shared_from_this()](boost::system::error_code failed) {
    if (!failed) self->settle();
  });
}

void Exec::settle() {
  if (finished() || settling_) return;
  settling_ = true;
  const int status = exited_ ? exited_->wait_status : 0;
  const bool killed = exited_ && ((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
                                  (WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGKILL));
  const bool timed_out = kill_reason_ == KillReason::kTimeout || kill_reason_ == KillReason::kDeadline;
  if ((killed || timed_out || stalled_base_known_) && sandbox_.instance() != nullptr) {
    // What the host saw decides between a command's own limit and the platform's fault.
    asio::co_spawn(sandbox_.context().io, [self = shared_from_this()] { return self->settle_with_usage(); }, asio::detached);
    return;
  }
  finish(exited_ && WIFSIGNALED(status) ? ExecStatus::kSignaled : ExecStatus::kExited);
}

asio::awaitable<void> Exec::settle_with_usage() {
  const std::shared_ptr<Exec> self = shared_from_this();
  const std::shared_ptr<LiveSandbox> sandbox = sandbox_.shared_from_this();
  const std::shared_ptr<backend::Instance> instance = sandbox_.instance();
  Result<backend::Usage> usage = co_await net::on_pool(sandbox_.context().calls, [instance] { return instance->usage(); });
  if (finished()) co_return;
  if (usage.ok()) {
    result_.oom_kills = sandbox_.new_oom_kills(usage->oom_kills);
    if (stalled_base_known_ && usage->stalled_usec > stalled_base_usec_)
      result_.stalled_usec = usage->stalled_usec - stalled_base_usec_;
  }
  const int status = exited_ ? exited_->wait_status : 0;
  if (kill_reason_ == KillReason::kTimeout || kill_reason_ == KillReason::kDeadline)
    finish(ExecStatus::kTimedOut);
  else if (kill_reason_ == KillReason::kCaller)
    finish(ExecStatus::kKilled);
  else if (exited_ && WIFSIGNALED(status))
    finish(WTERMSIG(status) == SIGKILL && result_.oom_kills > 0 ? ExecStatus::kOom : ExecStatus::kSignaled);
  else
    finish(ExecStatus::kExited);
}

void Exec::finish(ExecStatus status) {
  if (finished()) return;
  timer_.cancel();
  Context& context = sandbox_.context();
  if (status == ExecStatus::kSignaled && kill_reason_ == KillReason::kCaller) status = ExecStatus::kKilled;
  if (exited_) {
    if (WIFSIGNALED(exited_->wait_status)) result_.signal = WTERMSIG(exited_->wait_status);
    else result_.exit_code = WEXITSTATUS(exited_->wait_status);
    result_.cpu_usec = exited_->user_usec + exited_->system_usec;
    result_.memory_peak_bytes = exited_->max_rss_kb << 10;
    result_.shell_modified = exited_->shell_modified;
  } else if (status == ExecStatus::kTimedOut || status == ExecStatus::kKilled) {
    result_.signal = SIGKILL;
  }
  if (processes_) {
    // The cgroup's own count includes what was never waited for.
    result_.cpu_usec = std::max(result_.cpu_usec, processes_->cpu_usec());
    result_.frozen_usec = processes_->frozen_usec();
  }
  result_.id = sandbox_.id();
  result_.duration_usec = usec((exited_ ? exited_at_ : context.clock.now()) - started_at_);
  result_.frozen_usec = std::min(result_.frozen_usec, result_.duration_usec);
  const std::uint64_t active = result_.duration_usec - result_.frozen_usec;
  // More than half of the time was the platform's: not the command's fault.
  if (status == ExecStatus::kTimedOut && result_.stalled_usec * 2 > active) result_.infra = true;
  const bool succeeded = status == ExecStatus::kExited && result_.exit_code == 0;
  if (!succeeded && sandbox_.met_data_fault()) result_.infra = true;
  result_.finished_at_ms = context.now_ms();
  if (result_.started_at_ms == 0) result_.started_at_ms = accepted_at_ms_;

  const bool spill = !sandbox_.may_keep_inline(streams_[0].tail_bytes() + streams_[1].tail_bytes());
  for (int i = 0; i < 2; ++i) {
    OutputStream& stream = streams_[i];
    // Never the same bytes half here and half there: once the spool has some, it has all.
    if (spill || stream.tail_offset() > 0) {
      if (Result<void> spilled = stream.spill(sandbox_.spool(), id_); !spilled.ok() && sandbox_.note_spool_error())
        log_warning("output is not spooled", {{"sandbox", sandbox_.id()}, {"why", spilled.error().message()}});
    }
    result_.streams[i] = {.total = stream.total(), .stored = stream.stored(), .tail_offset = stream.tail_offset(),
                          .tail = stream.tail(), .ended = stream.ended()};
  }
  result_.status = static_cast<std::uint8_t>(status);
  if (Result<std::uint64_t> logged = context.log(WalType::kOpFinished, result_); !logged.ok())
    log_error("a result is not in the log", {{"sandbox", sandbox_.id()}, {"exec", id_}, {"why", logged.error().message()}});
  for (auto& stream : result_.streams) std::string().swap(stream.tail);
  std::string().swap(stdin_);
  request_.env.clear();
  acknowledge();
  release_if_done();
  changed_.notify();
  sandbox_.on_exec_finished(*this);
}

void Exec::release_if_done() {
  if (!finished() || released_ || !sent_ || !ended()) return;
  if (!sandbox_.channel_open()) return;
  released_ = true;
  sandbox_.send_lazily(MessageType::kRelease, protocol::encode(protocol::Release{.op_id = id_}));
}

bool Exec::let_go() {
  if (!processes_) return true;
  if (sandbox_.wants_spare()) {
    if (std::shared_ptr<backend::Operation> renewed = processes_->renew()) {
      processes_.reset();
      sandbox_.give_spare(std::move(renewed));
      return true;
    }
  }
  if (processes_->populated()) return false;
  // Its destructor removes the cgroup: a system call that may block.
  std::shared_ptr<backend::Operation> gone = std::exchange(processes_, nullptr);
  const Result<void> queued = sandbox_.context().calls.submit([gone = std::move(gone)]() mutable { gone.reset(); });
  return queued.ok() || true;
}

void Exec::arm() {
  if (finished() || exited_) return;
  Instant next = kNoInstant;
  // Its own time stands still with it: go_on() comes back here.
  const bool ticks = request_.timeout_ms > 0 && pid_ != 0 && !sandbox_.stands_still();
  if (ticks)
    next = started_at_ + std::chrono::milliseconds(request_.timeout_ms) + microseconds(frozen_usec());
  if (request_.deadline_ms > 0) next = std::min(next, accepted_at_ + std::chrono::milliseconds(request_.deadline_ms));
  if (next == kNoInstant) return;
  if (!stalled_base_known_ && pid_ != 0) next = std::min(next, started_at_ + kStallBaseline);
  timer_.expires_at(next);
  timer_.async_wait([self = shared_from_this()](boost::system::error_code failed) {
    if (!failed) self->on_timer();
  });
}

void Exec::on_timer() {
  if (finished() || exited_) return;
  if (kill_reason_ != KillReason::kNone) {
    // The kill was sent and nobody reported the end: the result does not wait for it.
    settle();
    return;
  }
  const Instant now = sandbox_.context().clock.now();
  if (!stalled_base_known_ && pid_ != 0 && sandbox_.instance() != nullptr) {
    stalled_base_known_ = true;
    asio::co_spawn(
        sandbox_.context().io,
        [](std::shared_ptr<Exec> self, std::shared_ptr<LiveSandbox> sandbox,
           std::shared_ptr<backend::Instance> instance) -> asio::awaitable<void> {
          const Result<backend::Usage> usage =
              co_await net::on_pool(sandbox->context().calls, [instance] { return instance->usage(); });
          if (usage.ok()) self->stalled_base_usec_ = usage->stalled_usec;
        }(shared_from_this(), sandbox_.shared_from_this(), sandbox_.instance()),
        asio::detached);
  }
  if (request_.deadline_ms > 0 && now >= accepted_at_ + std::chrono::milliseconds(request_.deadline_ms))
    return kill(KillReason::kDeadline);
  if (request_.timeout_ms > 0 && pid_ != 0 && !sandbox_.stands_still() &&
      now >= started_at_ + std::chrono::milliseconds(request_.timeout_ms) + microseconds(frozen_usec()))
    return kill(KillReason::kTimeout);
  arm();
}

void Exec::kill(KillReason reason) {
  if (kill_reason_ == KillReason::kNone) kill_reason_ = reason;
  if (processes_) {
    const std::shared_ptr<backend::Operation> processes = processes_;
    const std::string id = id_;
    const Result<void> queued = sandbox_.context().calls.submit([processes, id] {
      if (Result<void> killed = processes->kill(); !killed.ok())
        log_warning("a command's processes were not killed", {{"exec", id}, {"why", killed.error().message()}});
    });
    if (!queued.ok()) log_warning("a kill was not queued", {{"exec", id_}});
  }
  if (finished()) return;
  // Ends it also while it waits for its session, or where the backend has no cgroup for it.
  if (sent_ && (pid_ == 0 || !processes_ || processes_->cgroup_fd() < 0))
    sandbox_.send(MessageType::kSignal,
                  protocol::encode(protocol::Signal{.op_id = id_, .number = SIGKILL, .scope = protocol::SignalScope::kGroup}));
  timer_.expires_at(sandbox_.context().clock.now() + sandbox_.context().limits.kill_grace);
  timer_.async_wait([self = shared_from_this()](boost::system::error_code failed) {
    if (!failed) self->on_timer();
  });
}

void Exec::lose(ExecStatus status, bool infra, const std::string& why) {
  if (finished()) return;
  for (OutputStream& stream : streams_) stream.set_ended();
  result_.infra = infra;
  result_.error = why;
  if (exited_) {
    // It had ended before the sandbox did.
    result_.infra = false;
    result_.error.clear();
    status = WIFSIGNALED(exited_->wait_status) ? ExecStatus::kSignaled : ExecStatus::kExited;
  }
  finish(status);
}

Result<void> Exec::signal(int number, protocol::SignalScope scope) {
  if (finished()) return Error(ErrorCode::kConflict, "the command has ended");
  if (!sandbox_.channel_open()) return Error(ErrorCode::kUnavailable, "the sandbox cannot be reached now");
  sandbox_.send(MessageType::kSignal, protocol::encode(protocol::Signal{.op_id = id_, .number = number, .scope = scope}));
  return {};
}

Result<void> Exec::resize(std::uint16_t rows, std::uint16_t columns) {
  if (finished()) return Error(ErrorCode::kConflict, "the command has ended");
  if (!request_.terminal.wanted) return Error(ErrorCode::kConflict, "the command has no terminal");
  request_.terminal.rows = rows;
  request_.terminal.columns = columns;
  sandbox_.send(MessageType::kResize, protocol::encode(protocol::Resize{.op_id = id_, .rows = rows, .columns = columns}));
  return {};
}

std::size_t Exec::stdin_room() const { return stdin_.size() >= kStdinWindow ? 0 : kStdinWindow - stdin_.size(); }

Result<void> Exec::write_stdin(std::string_view bytes, bool end) {
  if (finished() || exited_ || stdin_closed_) return Error(ErrorCode::kConflict, "the command takes no more input");
  if (stdin_ending_) return Error(ErrorCode::kConflict, "stdin was ended");
  if (!request_.open_stdin && !request_.terminal.wanted) return Error(ErrorCode::kConflict, "the command was started without an open stdin");
  stdin_.append(bytes);
  if (end) stdin_ending_ = true;
  pump_stdin();
  return {};
}

void Exec::pump_stdin() {
  if (!sent_ || stdin_closed_ || finished()) return;
  while (stdin_sent_ < stdin_.size() && stdin_sent_ < kStdinWindow) {
    const std::size_t n = std::min({stdin_.size() - stdin_sent_, protocol::kDataChunk, kStdinWindow - stdin_sent_});
    const bool last = stdin_ending_ && stdin_sent_ + n == stdin_.size();
    sandbox_.send(MessageType::kStdin,
                  protocol::encode(protocol::Stdin{
                      .op_id = id_, .offset = stdin_start_ + stdin_sent_, .bytes = stdin_.substr(stdin_sent_, n), .end = last}),
                  -1, AgentChannel::Lane::kData);
    stdin_sent_ += n;
    stdin_end_sent_ = stdin_end_sent_ || last;
  }
  if (stdin_ending_ && !stdin_end_sent_ && stdin_sent_ == stdin_.size()) {
    sandbox_.send(MessageType::kStdin,
                  protocol::encode(protocol::Stdin{.op_id = id_, .offset = stdin_start_ + stdin_sent_, .bytes = {}, .end = true}), -1,
                  AgentChannel::Lane::kData);
    stdin_end_sent_ = true;
  }
}

void Exec::on_stdin_ack(const protocol::StdinAck& message) {
  if (message.closed) {
    stdin_closed_ = true;
    stdin_.clear();
    changed_.notify();
    return;
  }
  // After a restart the bytes before are not known here, only how many there were.
  if (message.offset > stdin_start_ && stdin_.empty()) stdin_start_ = message.offset;
  if (message.offset <= stdin_start_ || message.offset > stdin_start_ + stdin_sent_) return;
  const std::uint64_t taken = message.offset - stdin_start_;
  stdin_.erase(0, taken);
  stdin_start_ += taken;
  stdin_sent_ -= taken;
  pump_stdin();
  changed_.notify();
}

void Exec::restore(const OpFinishedRecord& result) {
  result_ = result;
  for (int i = 0; i < 2; ++i) {
    OpFinishedRecord::Stream& stream = result_.streams[i];
    streams_[i].restore_tail(stream.tail_offset, std::move(stream.tail), stream.total, stream.ended);
    stream.tail.clear();
  }
  stdin_.clear();
  request_.env.clear();
  sent_ = true;
  pid_ = 0;
  released_ = streams_[0].ended() && streams_[1].ended();
}

}  // namespace dsec::edge
