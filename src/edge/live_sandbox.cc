#include "edge/live_sandbox.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "base/log.h"
#include "edge/file_transfer.h"

namespace dsec::edge {

using protocol::MessageType;

namespace {
constexpr std::size_t kEventsKept = 256;
constexpr std::size_t kLoggedDetail = 1024;
constexpr auto kPingPeriod = std::chrono::seconds(30);
}  // namespace

LiveSandbox::LiveSandbox(Context& context, SandboxOwner& owner, AcceptedRecord accepted, std::string node)
    : context_(context),
      owner_(owner),
      accepted_(std::move(accepted)),
      pidfd_(context.io),
      spool_(context.sandbox_directory + "/" + accepted_.id, context.limits.spool_bytes),
      last_activity_(context.clock.now()) {
  sandbox_.id = accepted_.id;
  sandbox_.project = accepted_.project;
  sandbox_.node = std::move(node);
  sandbox_.spec = accepted_.spec;
  sandbox_.layer_digests = accepted_.layer_digests;
  sandbox_.state = model::SandboxState::kStarting;
  sandbox_.created_at_ms = accepted_.created_at_ms;
}

LiveSandbox::~LiveSandbox() = default;

void LiveSandbox::note_event(std::string type, std::string detail) {
  keep_event(std::move(type), std::move(detail));
  const SandboxEvent& event = events_.back();
  // Not waited for: it is in the log's file, which a death of this process does not take.
  const EventRecord record{.id = id(), .sequence = event.sequence, .at_ms = event.at_ms, .type = event.type, .detail = event.detail.substr(0, kLoggedDetail)};
  if (Result<std::uint64_t> logged = context_.log(WalType::kEvent, record); !logged.ok())
    log_warning("an event is not in the log", {{"sandbox", id()}, {"event", event.type}, {"why", logged.error().message()}});
}

void LiveSandbox::keep_event(std::string type, std::string detail) {
  SandboxEvent event{.at_ms = context_.now_ms(), .sandbox_id = id(), .project = project(), .type = std::move(type), .detail = std::move(detail)};
  owner_.publish(event);
  events_.push_back(std::move(event));
  if (events_.size() > kEventsKept) events_.pop_front();
}

const SandboxEvent& LiveSandbox::restore_event(EventRecord record) {
  events_.push_back({.sequence = record.sequence, .at_ms = record.at_ms, .sandbox_id = id(), .project = project(), .type = std::move(record.type), .detail = std::move(record.detail)});
  if (events_.size() > kEventsKept) events_.pop_front();
  return events_.back();
}

void LiveSandbox::set_state(model::SandboxState state) {
  const bool end = state == model::SandboxState::kEnded || state == model::SandboxState::kEnding;
  set_state(state, std::string(model::to_string(state)), end ? sandbox_.end_detail : std::string());
}

void LiveSandbox::set_state(model::SandboxState state, std::string event, std::string detail) {
  if (sandbox_.state == state) return;
  DSEC_CHECK(model::may_follow(sandbox_.state, state));
  sandbox_.state = state;
  if (!event.empty()) note_event(std::move(event), std::move(detail));
  owner_.on_sandbox_changed(*this);
  changed_.notify();
}

void LiveSandbox::mark_data_fault(std::int64_t at_ms, const std::string& detail) {
  if (state() == model::SandboxState::kEnded) return;
  note_event("data_fault", detail);
  if (sandbox_.data_fault_at_ms != 0) return;
  sandbox_.data_fault_at_ms = at_ms;
  sandbox_.data_fault = detail;
  if (Result<std::uint64_t> logged = context_.log(WalType::kDataFault, DataFaultRecord{id(), at_ms, detail}); !logged.ok())
    log_error("a data fault is not in the log", {{"sandbox", id()}, {"why", logged.error().message()}});
}

void LiveSandbox::restore_data_fault(const DataFaultRecord& record) {
  sandbox_.data_fault_at_ms = record.at_ms;
  sandbox_.data_fault = record.detail;
}

bool LiveSandbox::met_data_fault() {
  owner_.note_data_faults();
  return sandbox_.data_fault_at_ms != 0;
}

void LiveSandbox::restore_rolled_back(const RolledBackRecord& record) {
  accepted_.layer_digests = sandbox_.layer_digests = record.layer_digests;
  sandbox_.rolled_back_at_ms = record.at_ms;
  sandbox_.state = model::SandboxState::kStarting;  // whatever stood there: it starts anew
  rolling_back_ = true;
  start_exec_.reset();  // it starts anew
}

Result<void> LiveSandbox::patch(const model::SandboxSpec& spec) {
  if (over()) return Error(ErrorCode::kConflict, "the sandbox has ended");
  if (spec.network != sandbox_.spec.network) DSEC_TRY(owner_.check_network(spec.network));
  PatchedRecord record{.id = id(), .spec = spec, .expires_at_ms = sandbox_.expires_at_ms};
  const std::int64_t lifetime_ms = spec.lifetime.max_seconds * 1000;
  const bool changed = spec.lifetime.max_seconds != sandbox_.spec.lifetime.max_seconds;
  // Its lifetime stands still: what changes is how much is left. Once it resumes it has an end again.
  const bool stands = sandbox_.state == model::SandboxState::kPausing || sandbox_.state == model::SandboxState::kPaused;
  if (stands) record.left_ms = !changed ? sandbox_.pause->left_ms : lifetime_ms == 0 ? -1 : lifetime_ms;
  // One that is held has not begun.
  else if (changed && !held()) record.expires_at_ms = lifetime_ms == 0 ? 0 : context_.now_ms() + lifetime_ms;
  DSEC_TRY(context_.log(WalType::kPatched, record));
  sandbox_.spec = spec;
  sandbox_.expires_at_ms = record.expires_at_ms;
  if (stands) sandbox_.pause->left_ms = record.left_ms;
  note_event("patched", "");
  owner_.on_sandbox_changed(*this);
  changed_.notify();
  return {};
}

bool LiveSandbox::start_exec_running() const { return !start_exec_->finished(); }

bool LiveSandbox::is_idle() const {
  const auto idle = std::chrono::seconds(sandbox_.spec.lifetime.idle_seconds);
  return idle.count() > 0 && !busy() && context_.clock.now() - last_activity_ >= idle;
}

void LiveSandbox::tick() {
  if (!running() && !at_rest()) return;
  const Instant now = context_.clock.now();
  if (channel_ != nullptr) channel_->send_held();
  std::erase_if(lingering_, [](const std::shared_ptr<Exec>& exec) { return exec->let_go(); });
  if (!running()) return;

  // Who has called for a pause has decided already.
  if (pauses_coming_ == 0 && now >= no_timeout_before_) {
    const bool pauses = sandbox_.spec.lifetime.on_timeout == model::OnTimeout::kPause;
    if (is_expired()) {
      if (pauses) return begin_pause({.reason = "ttl", .when = PauseOptions::When::kIfExpired});
      return begin_end(model::EndCause::kTtl, "its lifetime of " + std::to_string(sandbox_.spec.lifetime.max_seconds) + " s has passed");
    }
    if (is_idle()) {
      if (pauses) return begin_pause({.reason = "idle", .when = PauseOptions::When::kIfIdle});
      return begin_end(model::EndCause::kIdle, "idle for " + std::to_string(sandbox_.spec.lifetime.idle_seconds) + " s");
    }
  }

  if (!channel_open() || now - last_ping_ < kPingPeriod) return;
  if (ping_nonce_ != pong_nonce_) {
    channel_->close();
    on_channel_lost("no answer to a ping");
    return;
  }
  last_ping_ = now;
  send(MessageType::kPing, protocol::encode(protocol::Ping{.nonce = ++ping_nonce_}));
}

void LiveSandbox::send(MessageType type, std::string_view body, int fd, AgentChannel::Lane lane) {
  if (channel_ != nullptr && channel_->open()) channel_->send(type, body, fd, lane);
}

void LiveSandbox::send_lazily(MessageType type, std::string_view body) {
  if (channel_ != nullptr && channel_->open()) channel_->send_lazily(type, body);
}

void LiveSandbox::on_pong(const protocol::Ping& pong) { pong_nonce_ = pong.nonce; }

void LiveSandbox::on_exec_started(const protocol::ExecStarted& message) {
  if (const auto exec = find_exec(message.op_id)) exec->on_started(message);
}
void LiveSandbox::on_exec_failed(const protocol::ExecFailed& message) {
  if (const auto exec = find_exec(message.op_id)) exec->on_failed(message);
}
void LiveSandbox::on_output(protocol::Output message) {
  if (const auto exec = find_exec(message.op_id)) exec->on_output(message);
}
void LiveSandbox::on_exited(const protocol::Exited& message) {
  if (const auto exec = find_exec(message.op_id)) exec->on_exited(message);
}
void LiveSandbox::on_stdin_ack(const protocol::StdinAck& message) {
  if (const auto exec = find_exec(message.op_id)) exec->on_stdin_ack(message);
}

std::uint64_t LiveSandbox::add_transfer(FileTransfer& transfer) {
  const std::uint64_t id = next_request_++;
  transfers_[id] = &transfer;
  return id;
}
void LiveSandbox::remove_transfer(std::uint64_t request_id) { transfers_.erase(request_id); }

void LiveSandbox::on_file_reply(protocol::FileReply message) {
  if (const auto found = transfers_.find(message.request_id); found != transfers_.end()) found->second->on_reply(std::move(message));
}
void LiveSandbox::on_file_data(protocol::FileData message) {
  if (const auto found = transfers_.find(message.request_id); found != transfers_.end()) found->second->on_data(std::move(message));
}
void LiveSandbox::on_file_ack(const protocol::FileAck& message) {
  if (const auto found = transfers_.find(message.request_id); found != transfers_.end()) found->second->on_ack(message);
}

void LiveSandbox::let_go() {
  if (channel_ != nullptr) channel_->close();
  sys::Fd(pidfd_.is_open() ? pidfd_.release() : -1).reset();  // see end_now()
}

void LiveSandbox::restore_launched(const LaunchedRecord& record) {
  backend_record_ = record.backend_record;
  upper_record_ = record.upper_record;
  rolling_back_ = false;
}

void LiveSandbox::restore_started(const StartedRecord& record) {
  sandbox_.state = model::SandboxState::kRunning;
  sandbox_.started_at_ms = record.at_ms;
  sandbox_.expires_at_ms = record.expires_at_ms;
}

void LiveSandbox::restore_transition(const TransitionRecord& record) {
  const bool held = record.state == model::SandboxState::kQueued;
  if (held || record.state == model::SandboxState::kStarting) sandbox_.state = record.state;
  if (record.state != model::SandboxState::kEnding) return;
  sandbox_.pause.reset();
  sandbox_.state = model::SandboxState::kEnding;
  sandbox_.cause = record.cause;
  sandbox_.end_detail = record.detail;
  end_wanted_ = true;
  end_cause_ = record.cause;
  end_detail_ = record.detail;
}

void LiveSandbox::restore_patched(const PatchedRecord& record) {
  sandbox_.spec = record.spec;
  sandbox_.expires_at_ms = record.expires_at_ms;
  if (sandbox_.pause) sandbox_.pause->left_ms = record.left_ms;
}

void LiveSandbox::restore_ended(const EndedRecord& record) {
  sandbox_.pause.reset();
  sandbox_.state = model::SandboxState::kEnded;
  sandbox_.cause = record.cause;
  sandbox_.end_detail = record.detail;
  sandbox_.ended_at_ms = record.at_ms;
  if (record.cause == model::EndCause::kUser) events_.clear();  // as its end did
}

void LiveSandbox::restore_op(const OpAcceptedRecord& record) {
  Result<ExecRequest> request = parse_exec_request(record.request);
  if (!request.ok()) request = ExecRequest{.argv = {"?"}};
  auto exec = std::make_shared<Exec>(*this, record.op_id, std::move(request).value());
  exec->fingerprint = record.fingerprint;
  exec->restartable = record.restartable;
  exec->start_command = record.start_command;
  exec->processes_record = record.processes;
  exec->accepted(record.at_ms);
  if (!record.key.empty()) exec_keys_[record.key] = record.op_id;
  if (record.start_command) start_exec_ = exec;
  exec_order_.push_back(record.op_id);
  execs_[record.op_id] = std::move(exec);
  ++running_execs_;
}

void LiveSandbox::restore_result(OpFinishedRecord record) { restored_results_.push_back(std::move(record)); }

void LiveSandbox::restore_spool() {
  awaits_adoption_ = sandbox_.state != model::SandboxState::kEnded;
  const Result<void> recovered = spool_.recover([this](std::string_view op_id, std::uint8_t stream, OutputSpool::Chunk chunk) {
    if (const auto exec = find_exec(std::string(op_id))) exec->restore_stream(stream).restore_chunk(chunk);
  });
  if (!recovered.ok()) log_error("stored output cannot be read", {{"sandbox", id()}, {"why", recovered.error().message()}});
  // Results come behind the spool: their tails go on where it ends.
  for (OpFinishedRecord& record : restored_results_) {
    const auto exec = find_exec(record.op_id);
    if (!exec || exec->finished()) continue;
    inline_bytes_ += record.streams[0].tail.size() + record.streams[1].tail.size();
    exec->restore(record);
    --running_execs_;
  }
  std::vector<OpFinishedRecord>().swap(restored_results_);
}

}  // namespace dsec::edge
