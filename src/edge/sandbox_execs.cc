// The commands of a sandbox: acceptance, keys, preparation of their processes.

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/encoding.h"
#include "base/fail_point.h"
#include "base/log.h"
#include "edge/live_sandbox.h"
#include "net/blocking.h"

namespace dsec::edge {

using protocol::MessageType;

namespace {

// Larger requests are not kept: after a crash at the wrong moment such a command is lost, not started.
constexpr std::size_t kMaxLoggedRequest = 256 << 10;

std::string request_text_of(const ExecRequest& request) {
  boost::json::object out;
  if (!request.argv.empty()) {
    boost::json::array argv;
    for (const std::string& part : request.argv) argv.emplace_back(part);
    out["argv"] = std::move(argv);
  } else {
    out["shell"] = request.shell;
  }
  if (!request.cwd.empty()) out["cwd"] = request.cwd;
  if (!request.user.empty()) out["user"] = request.user;
  if (!request.env.empty()) {
    boost::json::object env;
    for (const auto& [name, value] : request.env) env[name] = value;
    out["env"] = std::move(env);
  }
  if (request.timeout_ms > 0) out["timeout_ms"] = request.timeout_ms;
  out["output_limit_bytes"] = request.output_limit_bytes;
  return boost::json::serialize(out);
}

}  // namespace

std::string LiveSandbox::new_op_id() { return to_base32(context_.random.bytes(10)); }

Result<void> LiveSandbox::close_session(const std::string& name) {
  if (!channel_open()) return Error(over() ? ErrorCode::kConflict : ErrorCode::kUnavailable, "the sandbox cannot be reached now");
  if (sessions_.erase(name) == 0) return Error(ErrorCode::kNotFound, "there is no session \"" + name.substr(0, 64) + "\"");
  send(MessageType::kSessionClose, protocol::encode(protocol::SessionClose{.session = name}));
  return {};
}

std::shared_ptr<Exec> LiveSandbox::find_exec(const std::string& op_id) const {
  const auto found = execs_.find(op_id);
  return found == execs_.end() ? nullptr : found->second;
}

Result<LiveSandbox::Started> LiveSandbox::start_exec(ExecRequest request, std::string_view request_text, Purpose purpose) {
  std::string print;
  if (!request.key.empty()) {
    print = fingerprint(request);
    if (const auto known = exec_keys_.find(request.key); known != exec_keys_.end()) {
      const std::shared_ptr<Exec> exec = find_exec(known->second);
      if (exec->fingerprint != print)
        return Error(ErrorCode::kConflict, fmt::format("the key \"{}\" belongs to another command ({}): nothing was run", request.key, exec->id()));
      return Started{exec, true};
    }
  }
  if (over() || end_wanted_) return Error(ErrorCode::kConflict, "the sandbox has ended");
  if (!channel_open()) return Error(ErrorCode::kUnavailable, "the sandbox cannot be reached now");
  if (running_execs_ >= context_.limits.max_running_execs)
    return Error(ErrorCode::kExhausted, fmt::format("{} commands run in this sandbox already", running_execs_));
  forget_some_execs();
  if (execs_.size() >= 10 * context_.limits.max_execs)
    return Error(ErrorCode::kExhausted, "too many commands with keys are remembered in this sandbox");

  const bool ready = spare_ != nullptr;
  const bool claims = !ready && preparing_ && !spare_claim_ && !spare_id_.empty();
  std::string op_id = claims ? std::exchange(spare_id_, {}) : new_op_id();
  OpAcceptedRecord record{.id = id(), .op_id = op_id, .key = request.key, .fingerprint = print, .request = {}, .at_ms = context_.now_ms()};
  record.request = request_text.empty() ? request_text_of(request) : std::string(request_text);
  if (record.request.size() > kMaxLoggedRequest) {
    record.request = "{\"argv\":[\"(not kept)\"]}";
    record.restartable = false;
  }
  record.start_command = purpose == Purpose::kStartCommand;
  if (ready) record.processes = spare_->record();
  // In the log before the agent hears of it: a restarted edge knows every command that can have run.
  DSEC_TRY(fail_point("edge.exec.accept"));
  if (Result<std::uint64_t> logged = context_.log(WalType::kOpAccepted, record); !logged.ok()) return std::move(logged).error();
  DSEC_TRY(fail_point("edge.exec.accepted"));

  auto exec = std::make_shared<Exec>(*this, op_id, std::move(request));
  exec->fingerprint = std::move(print);
  exec->restartable = record.restartable;
  exec->start_command = record.start_command;
  exec->processes_record = std::move(record.processes);
  execs_[op_id] = exec;
  exec_order_.push_back(op_id);
  if (!record.key.empty()) exec_keys_[record.key] = op_id;
  ++running_execs_;
  exec->accepted(record.at_ms);
  if (record.start_command) start_exec_ = exec;

  if (ready) {
    exec->give_processes(std::exchange(spare_, nullptr));
    exec->start();
  } else if (claims) {
    spare_claim_ = exec;
  } else {
    asio::co_spawn(context_.io, [self = shared_from_this(), exec] { return self->open_processes(exec); }, asio::detached);
  }
  return Started{exec, false};
}

asio::awaitable<void> LiveSandbox::open_processes(std::shared_ptr<Exec> exec) {
  const std::shared_ptr<LiveSandbox> self = shared_from_this();
  const std::shared_ptr<backend::Instance> instance = instance_;
  if (instance == nullptr) co_return;
  Result<std::unique_ptr<backend::Operation>> opened =
      co_await net::on_pool(context_.calls, [instance, exec] { return instance->open_operation(exec->id()); });
  if (exec->finished() || instance != instance_) co_return;
  if (!opened.ok()) {
    exec->fail("cgroup", opened.error().error_number(), opened.error().message());
    co_return;
  }
  exec->give_processes(std::shared_ptr<backend::Operation>(std::move(opened).value()));
  exec->start();
}

void LiveSandbox::prepare_operation() {
  if (preparing_ || spare_ || instance_ == nullptr || over()) return;
  preparing_ = true;
  spare_id_ = new_op_id();
  asio::co_spawn(context_.io, [self = shared_from_this()] { return self->prepare_spare(); }, asio::detached);
}

asio::awaitable<void> LiveSandbox::prepare_spare() {
  const std::shared_ptr<LiveSandbox> self = shared_from_this();
  const std::shared_ptr<backend::Instance> instance = instance_;
  Result<std::unique_ptr<backend::Operation>> opened =
      co_await net::on_pool(context_.calls, [instance, name = spare_id_] { return instance->open_operation(name); });
  preparing_ = false;
  if (instance != instance_) co_return;  // it was rolled back meanwhile
  const std::shared_ptr<Exec> claimant = std::exchange(spare_claim_, nullptr);
  if (claimant) {
    if (claimant->finished()) co_return;
    if (!opened.ok()) {
      claimant->fail("cgroup", opened.error().error_number(), opened.error().message());
      co_return;
    }
    claimant->give_processes(std::shared_ptr<backend::Operation>(std::move(opened).value()));
    claimant->start();
    co_return;
  }
  spare_id_.clear();
  if (!opened.ok() || over() || spare_) co_return;
  spare_ = std::shared_ptr<backend::Operation>(std::move(opened).value());
}

void LiveSandbox::start_start_command() {
  const model::StartCommand& start = *sandbox_.spec.start;
  if (start_exec_ != nullptr) return;  // recovered
  ExecRequest request{.argv = start.argv};
  request.env = start.env;
  request.background = true;
  Result<Started> started = start_exec(std::move(request), "", Purpose::kStartCommand);
  if (!started.ok()) {
    begin_end(model::EndCause::kStartFailed, "start command: " + started.error().message());
    return;
  }
}

std::vector<std::string> LiveSandbox::exec_environment(const ExecRequest& request) {
  std::map<std::string, std::string> merged;
  // A session keeps what its commands set: it gets the sandbox's environment once.
  if (request.session.empty() || sessions_.insert(request.session).second) {
    merged = accepted_.config.env;
    for (const auto& [name, value] : owner_.network_environment(*this)) merged[name] = value;
    for (const auto& [name, value] : sandbox_.spec.env) merged[name] = value;
  }
  for (const auto& [name, value] : request.env) merged[name] = value;
  std::vector<std::string> out;
  out.reserve(merged.size());
  for (const auto& [name, value] : merged) out.push_back(name + "=" + value);
  return out;
}

// Every command that has no result is offered to the agent again: one that it
// knows is not started twice, its state is repeated; one that it does not know
// was never handed over, and starts now.
void LiveSandbox::resume_execs() {
  std::map<std::string, protocol::OperationStatus> known;
  for (protocol::OperationStatus& status : hello_operations_) known.emplace(status.op_id, status);
  hello_operations_.clear();
  std::vector<std::shared_ptr<Exec>> open;
  for (const auto& [op_id, exec] : execs_) open.push_back(exec);
  for (const std::shared_ptr<Exec>& exec : open) {
    const auto found = known.find(exec->id());
    if (found != known.end()) {
      exec->reattach(found->second);
      known.erase(found);
      if (!exec->finished()) exec->start();
      continue;
    }
    if (exec->finished() || exec == spare_claim_) continue;
    if (!exec->restartable) {
      exec->lose(ExecStatus::kLost, true, "the edge was restarted before the command was handed over, and its request was not kept");
    } else if (exec->processes()) {
      exec->start();
    } else {
      asio::co_spawn(context_.io, [self = shared_from_this(), exec] { return self->open_processes(exec); }, asio::detached);
    }
  }
  for (const auto& [op_id, status] : known)
    send(MessageType::kRelease, protocol::encode(protocol::Release{.op_id = op_id}));
}

void LiveSandbox::on_exec_finished(Exec& exec) {
  --running_execs_;
  touch();
  // Behind whoever waits for the result.
  asio::post(context_.io, [self = shared_from_this(), done = exec.shared_from_this()] {
    if (!done->let_go()) self->lingering_.push_back(done);
  });
  if (exec.start_command && sandbox_.state == model::SandboxState::kRunning && !end_wanted_)
    begin_end(model::EndCause::kExit, "the start command has ended");
  if (exec.start_command) changed_.notify();
}

bool LiveSandbox::may_keep_inline(std::size_t bytes) {
  if (inline_bytes_ + bytes > context_.limits.inline_output_bytes) return false;
  inline_bytes_ += bytes;
  return true;
}

std::uint64_t LiveSandbox::new_oom_kills(std::uint64_t seen) {
  const std::uint64_t fresh = seen > oom_seen_ ? seen - oom_seen_ : 0;
  oom_seen_ = std::max(oom_seen_, seen);
  return fresh;
}

// The oldest finished commands without a key go first; a key is kept, so that it never runs twice.
void LiveSandbox::forget_some_execs() {
  if (execs_.size() < context_.limits.max_execs) return;
  std::size_t excess = execs_.size() - context_.limits.max_execs + context_.limits.max_execs / 16;
  std::deque<std::string> kept;
  for (std::string& op_id : exec_order_) {
    const std::shared_ptr<Exec> exec = find_exec(op_id);
    if (!exec) continue;
    if (excess > 0 && exec->finished() && exec->request().key.empty() && !exec->populated()) {
      inline_bytes_ -= std::min(inline_bytes_, exec->stream(protocol::OutputStream::kStdout).tail_bytes() +
                                                   exec->stream(protocol::OutputStream::kStderr).tail_bytes());
      execs_.erase(op_id);
      --excess;
      continue;
    }
    kept.push_back(std::move(op_id));
  }
  exec_order_ = std::move(kept);
}

}  // namespace dsec::edge
