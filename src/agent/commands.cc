#include "agent/commands.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "agent/command_plan.h"
#include "agent/devices.h"
#include "base/errno_text.h"
#include "base/fail_point.h"
#include "protocol/agent_descriptors.h"
#include "sys/process.h"

namespace dsec::agent {
namespace {

using protocol::MessageType;
using State = Operation::State;

constexpr std::size_t kOperationLimit = 1024;
constexpr std::size_t kSessionLimit = 256;
constexpr std::size_t kSessionQueueLimit = 256;
constexpr std::size_t kLingeringLimit = 256;
constexpr std::size_t kFailedLimit = 256;
constexpr char kPayloadOomScore[] = "500";
// What a short command prints comes sooner: the edge then wakes once for both.
constexpr std::chrono::milliseconds kBirthHold{2};

struct Pipe {
  sys::Fd read_end;
  sys::Fd write_end;
};

// Owned by the user of the command, so that /dev/stdout can be opened again inside.
Result<Pipe> make_pipe(uid_t owner, gid_t group) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("pipe", errno);
  Pipe pipe{sys::Fd(ends[0]), sys::Fd(ends[1])};
  if (::fchown(ends[0], owner, group) != 0 && errno != EPERM) return errno_error("give a pipe to its user", errno);
  return pipe;
}

void set_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

Error staged(const char* stage, Error error) {
  error.add_context(stage);
  return error;
}

}  // namespace

Commands::Commands(EventLoop& loop, Settings settings, Peer peer)
    : loop_(loop), settings_(settings), peer_(std::move(peer)), launcher_(loop) {
}

Commands::Entry* Commands::find(const std::string& op_id) {
  const auto found = entries_.find(op_id);
  return found == entries_.end() ? nullptr : &found->second;
}

void Commands::root_is_there() {
  if (auto proc = open_proc(); proc.ok()) proc_ = std::move(*proc);
}

void Commands::start(protocol::ExecStart request, sys::Fd cgroup) {
  const std::string op_id = request.op_id;
  if (Entry* known = find(op_id); known != nullptr && !known->operation->released()) return tell_state(*known);

  const auto refuse = [&](const char* stage, int error_number, std::string message) {
    peer_.send(MessageType::kExecFailed,
               protocol::encode(protocol::ExecFailed{.op_id = op_id, .stage = stage, .error_number = error_number, .message = std::move(message)}));
  };
  if (auto checked = check_exec_start(request); !checked.ok()) return refuse("argument", EINVAL, checked.error().message());
  if (auto step = fail_point("agent.exec.start"); !step.ok()) return refuse("start", EIO, step.error().message());
  if (find(op_id) != nullptr) return refuse("argument", EEXIST, "an operation of this id was released");
  if (request.with_cgroup && !cgroup.valid()) return refuse("cgroup", EBADF, "the cgroup's descriptor did not come");
  if (entries_.size() >= kOperationLimit) return refuse("limit", EAGAIN, "too many commands are remembered");

  std::shared_ptr<Session> session;
  if (!request.session.empty()) {
    const auto found = sessions_.find(request.session);
    if (found != sessions_.end()) {
      session = found->second;
    } else if (sessions_.size() >= kSessionLimit) {
      return refuse("session", EAGAIN, "too many sessions");
    } else {
      session = std::make_shared<Session>(request.session);
      sessions_[request.session] = session;
    }
    if (session->waiting.size() >= kSessionQueueLimit) return refuse("session", EAGAIN, "too many commands wait for the session");
  }

  Entry& entry = entries_[op_id];
  entry.cgroup = std::move(cgroup);
  entry.session = session;
  entry.operation = std::make_unique<Operation>(
      loop_, std::move(request),
      Operation::Events{.data = [this, op_id] { on_data(op_id); },
                        .settled = [this, op_id] { on_settled(op_id); },
                        .stdin_taken = [this, op_id](std::uint64_t offset, bool closed) {
                          peer_.send(MessageType::kStdinAck, protocol::encode(protocol::StdinAck{.op_id = op_id, .offset = offset, .closed = closed}));
                        }});
  if (session && !session->running.empty()) {
    session->waiting.push_back(op_id);
    return;
  }
  if (session) session->running = op_id;
  begin(entry);
}

void Commands::tell_state(Entry& entry) {
  Operation& operation = *entry.operation;
  switch (operation.state()) {
    case State::kWaiting:
    case State::kStarting:
      return;  // its answer is still to come
    case State::kRunning:
      hold_birth(entry);
      return tell_birth(entry);
    case State::kExited:
      if (operation.exit_told()) peer_.send(MessageType::kExited, protocol::encode(operation.exit()));
      return;
    case State::kFailed:
      peer_.send(MessageType::kExecFailed, protocol::encode(operation.failure()));
      return;
  }
}

void Commands::hold_birth(Entry& entry) {
  if (entry.birth_timer != 0) return;
  entry.birth_timer = loop_.after(kBirthHold, [this, op_id = entry.operation->id()] {
    if (Entry* held = find(op_id); held != nullptr) tell_birth(*held);
  });
}

void Commands::tell_birth(Entry& entry) {
  if (entry.birth_timer == 0) return;
  loop_.cancel(std::exchange(entry.birth_timer, 0));
  const auto age = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - entry.born_at);
  peer_.send(MessageType::kExecStarted, protocol::encode(protocol::ExecStarted{.op_id = entry.operation->id(),
                                                                               .pid = entry.operation->pid(),
                                                                               .age_usec = static_cast<std::uint64_t>(age.count())}));
}

void Commands::begin(Entry& entry) {
  entry.operation->set_starting();
  if (auto prepared = prepare(entry); !prepared.ok()) {
    // "stage: message"
    const std::string& text = prepared.error().message();
    const std::size_t colon = text.find(": ");
    const int number = prepared.error().error_number();
    fail(entry, text.substr(0, colon), number != 0 ? number : EINVAL, text.substr(colon + 2));
  }
}

Result<void> Commands::prepare(Entry& entry) {
  DSEC_TRY(fail_point("agent.exec.prepare").within("start"));
  Operation& operation = *entry.operation;
  const protocol::ExecStart& request = operation.request();
  std::string passwd;
  std::string group;
  // Root needs no file of the sandbox to be found.
  if (!(request.user.empty() || request.user == "0" || request.user == "root")) {
    passwd = read_account_file("/etc/passwd");
    group = read_account_file("/etc/group");
  }
  auto account = find_account(request.user == "root" ? "" : request.user, passwd, group);
  if (!account.ok()) return staged("user", std::move(account).error());
  if (settings_.standing.inner_user_namespace >= 0 && (account->uid >= protocol::kPayloadIds || account->gid >= protocol::kPayloadIds)) {
    return staged("user", Error(ErrorCode::kInvalidArgument, "the sandbox has the ids 0 to 65535", EINVAL));
  }
  if (account->uid == 0 && account->shell == "/bin/sh") account->shell = "/bin/bash";
  if (settings_.plain && ::geteuid() != 0 && request.user.empty()) account->uid = ::getuid(), account->gid = ::getgid();

  const ShellSession* state = entry.session ? &entry.session->state : nullptr;
  PayloadPlan::Description plan;
  Environment environment = make_environment(request, *account, state != nullptr ? state->environment() : nullptr);
  const std::string base = state != nullptr && !state->cwd().empty() ? state->cwd() : account->home;
  plan.cwd = request.cwd.empty() ? base : join_path(base, request.cwd);
  plan.nearest_cwd = request.cwd.empty();
  entry.start_cwd = plan.cwd;
  plan.uid = account->uid;
  plan.gid = account->gid;
  plan.groups = std::move(account->groups);
  plan.no_new_privs = no_new_privs_;
  plan.controlling_terminal = request.terminal.wanted;
  plan.open_files = settings_.open_files;
  plan.standing = settings_.standing;

  PayloadPlan::Descriptors fds;
  fds.cgroup = std::move(entry.cgroup);
  if (!request.shell.empty()) {
    check_shell(entry);
    if (state != nullptr) {
      environment["PWD"] = plan.cwd;
      auto wrapped = state->wrap(request, ::access("/bin/bash", X_OK) == 0);
      if (!wrapped.ok()) return staged("session", std::move(wrapped).error());
      plan.programs = std::move(wrapped->programs);
      for (auto& [name, value] : wrapped->environment) environment[name] = std::move(value);
      fds.state_in = std::move(wrapped->state_in);
      fds.state_in_number = kStateInNumber;
      fds.state_out_number = wrapped->state_out_number;
      auto dump = sys::Fd(::fcntl(wrapped->state_out.get(), F_DUPFD_CLOEXEC, 3));
      if (!dump) return staged("session", errno_error("dup", errno));
      entry.session_dump = std::move(dump);
      fds.state_out = std::move(wrapped->state_out);
    } else {
      plan.programs = {{{"/bin/bash"}, {"bash", "-c", request.shell}}, {{"/bin/sh"}, {"sh", "-c", request.shell}}};
    }
  } else {
    plan.programs = {{candidates(request.argv[0], environment), request.argv}};
  }
  plan.env = to_strings(environment);

  if (!null_.valid()) {
    auto null = open_null_device();
    if (!null.ok()) return staged("descriptors", std::move(null).error());
    null_ = std::move(*null);
  }
  if (request.terminal.wanted) {
    auto pair = open_terminal(plan.uid, request.terminal.rows, request.terminal.columns);
    if (!pair.ok()) return staged("terminal", std::move(pair).error());
    auto input = sys::Fd(::fcntl(pair->master.get(), F_DUPFD_CLOEXEC, 3));
    fds.out = sys::Fd(::fcntl(pair->slave.get(), F_DUPFD_CLOEXEC, 3));
    fds.err = sys::Fd(::fcntl(pair->slave.get(), F_DUPFD_CLOEXEC, 3));
    fds.in = std::move(pair->slave);
    if (!input || !fds.out || !fds.err) return staged("descriptors", errno_error("dup", errno));
    operation.attach_terminal(std::move(pair->master), std::move(input));
  } else {
    if (request.open_stdin) {
      auto pipe = make_pipe(plan.uid, plan.gid);
      if (!pipe.ok()) return staged("descriptors", std::move(pipe).error());
      set_nonblocking(pipe->write_end.get());
      fds.in = std::move(pipe->read_end);
      operation.attach_input(std::move(pipe->write_end));
    } else {
      fds.in = sys::Fd(::fcntl(null_.get(), F_DUPFD_CLOEXEC, 3));
    }
    for (const auto stream : {protocol::OutputStream::kStdout, protocol::OutputStream::kStderr}) {
      auto pipe = make_pipe(plan.uid, plan.gid);
      if (!pipe.ok()) return staged("descriptors", std::move(pipe).error());
      set_nonblocking(pipe->read_end.get());
      (stream == protocol::OutputStream::kStdout ? fds.out : fds.err) = std::move(pipe->write_end);
      operation.attach_output(stream, std::move(pipe->read_end));
    }
  }

  launcher_.launch(std::make_unique<PayloadPlan>(std::move(plan), std::move(fds)),
                   [this, op_id = operation.id()](PayloadPlan& born, bool ran) { on_born(op_id, born, ran); });
  return {};
}

void Commands::fail(Entry& entry, std::string stage, int error_number, std::string message) {
  Operation& operation = *entry.operation;
  operation.set_failed({.op_id = operation.id(), .stage = std::move(stage), .error_number = error_number, .message = std::move(message)});
  peer_.send(MessageType::kExecFailed, protocol::encode(operation.failure()));
  entry.session_dump.reset();
  leave_session(entry);

  // Kept for an edge that asks again, but not for ever.
  const std::string op_id = operation.id();
  failed_.push_back(op_id);
  if (failed_.size() > kFailedLimit) {
    entries_.erase(failed_.front());
    failed_.pop_front();
  }
  if (operation.released()) loop_.later([this, op_id] { forget_if_finished(op_id); });
}

void Commands::on_born(const std::string& op_id, PayloadPlan& plan, bool ran) {
  Entry* entry = find(op_id);
  DSEC_CHECK(entry != nullptr);
  const EarlyExit early = std::exchange(early_exit_, {});
  if (!ran) {
    const int number = plan.error_number();
    return fail(*entry, stage_name(plan.stage()), number, errno_text(number));
  }
  if (auto step = fail_point("agent.exec.born"); !step.ok()) {
    // Born and not to be told of: it must not run on unseen.
    const sys::Fd unseen = plan.take_pidfd();
    (void)sys::signal_process(unseen.get(), SIGKILL);
    return fail(*entry, "start", EIO, step.error().message());
  }
  entry->operation->set_running(plan.pid(), plan.take_pidfd());
  entry->born_at = std::chrono::steady_clock::now();
  raise_oom_score(plan.pid());
  hold_birth(*entry);
  if (early.pid == plan.pid()) return finish_exit(*entry, early.wait_status, early.usage);
  running_[plan.pid()] = op_id;
  entry->operation->send_early_signals();
}

// What fills the node's memory is to end before the platform's own processes do.
void Commands::raise_oom_score(pid_t pid) {
  if (settings_.plain || !proc_.valid()) return;
  const std::string path = std::to_string(pid) + "/oom_score_adj";
  const sys::Fd fd(::openat(proc_.get(), path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  if (fd.valid()) [[maybe_unused]] const auto put = ::write(fd.get(), kPayloadOomScore, sizeof kPayloadOomScore - 1);
}

void Commands::on_child_exit(pid_t pid, int wait_status, const rusage& usage) {
  const auto found = running_.find(pid);
  if (found == running_.end()) {
    if (pid == launcher_.unborn_pid()) early_exit_ = {pid, wait_status, usage};
    return;
  }
  Entry* entry = find(found->second);
  running_.erase(found);
  DSEC_CHECK(entry != nullptr);
  finish_exit(*entry, wait_status, usage);
}

void Commands::finish_exit(Entry& entry, int wait_status, const rusage& usage) {
  // One that cannot tell an end is of no use.
  if (!fail_point("agent.exec.exited").ok()) ::_exit(1);
  tell_birth(entry);
  if (entry.session_dump.valid()) {
    entry.session->state.absorb(entry.operation->request(), entry.start_cwd, entry.session_dump.get());
    entry.session_dump.reset();
  }
  if (!entry.operation->request().shell.empty()) check_shell(entry);
  const std::string op_id = entry.operation->id();
  entry.operation->set_exited(wait_status, usage);
  leave_session(entry);
  if (entry.operation->released()) forget_if_finished(op_id);
}

void Commands::leave_session(Entry& entry) {
  if (!entry.session || entry.session->running != entry.operation->id()) return;
  const auto session = entry.session;
  session->running.clear();
  if (session->waiting.empty()) return;
  session->running = session->waiting.front();
  session->waiting.pop_front();
  loop_.later([this, next = session->running] {
    if (Entry* waiting = find(next); waiting != nullptr && waiting->operation->state() == State::kWaiting) begin(*waiting);
  });
}

void Commands::on_data(const std::string& op_id) {
  Entry* entry = find(op_id);
  if (entry == nullptr) return;
  if (entry->operation->released()) {
    loop_.later([this, op_id] { forget_if_finished(op_id); });
    return;
  }
  tell_birth(*entry);
  if (!entry->in_turn) {
    entry->in_turn = true;
    turns_.push_back(op_id);
  }
  peer_.data_ready();
}

std::string Commands::next_data() {
  while (!turns_.empty()) {
    const std::string op_id = std::move(turns_.front());
    turns_.pop_front();
    Entry* entry = find(op_id);
    if (entry == nullptr) continue;
    std::string frame = entry->operation->next_output();
    if (frame.empty()) {
      entry->in_turn = false;
      continue;
    }
    turns_.push_back(op_id);
    return frame;
  }
  return {};
}

void Commands::on_settled(const std::string& op_id) {
  Entry* entry = find(op_id);
  if (entry == nullptr || entry->operation->released()) return;
  entry->operation->set_exit_told();
  peer_.send(MessageType::kExited, protocol::encode(entry->operation->exit()));
}

void Commands::write_input(const protocol::Stdin& message) {
  Entry* entry = find(message.op_id);
  if (entry == nullptr) return;
  if (!entry->operation->write_input(message.offset, message.bytes, message.end)) {
    peer_.send(MessageType::kProtocolError, protocol::encode(protocol::ProtocolError{.message = "stdin of " + message.op_id + ": bytes are missing, or past the window"}));
  }
}

void Commands::signal(const protocol::Signal& message) {
  Entry* entry = find(message.op_id);
  if (entry == nullptr) return;
  if (entry->operation->state() == State::kWaiting) {
    if (entry->session) std::erase(entry->session->waiting, message.op_id);
    return fail(*entry, "session", ECANCELED, "ended by a signal before its turn");
  }
  entry->operation->signal(message.number, message.scope);
}

void Commands::resize(const protocol::Resize& message) {
  if (Entry* entry = find(message.op_id); entry != nullptr) entry->operation->resize(message.rows, message.columns);
}

void Commands::acknowledge(const protocol::OutputAck& message) {
  if (Entry* entry = find(message.op_id); entry != nullptr) entry->operation->acknowledge(message.stream, message.offset);
}

void Commands::release(const std::string& op_id) {
  Entry* entry = find(op_id);
  if (entry == nullptr) return;
  if (entry->operation->state() == State::kWaiting) {
    if (entry->session) std::erase(entry->session->waiting, op_id);
    fail(*entry, "session", ECANCELED, "released before its turn");
  }
  entry->operation->release();
  lingering_.push_back(op_id);
  forget_if_finished(op_id);
  while (lingering_.size() > kLingeringLimit) {
    // The oldest that has ended: whoever holds its pipe gets SIGPIPE.
    const auto oldest = std::find_if(lingering_.begin(), lingering_.end(), [this](const std::string& id) {
      const Entry* lingering = find(id);
      return lingering == nullptr || lingering->operation->state() == State::kExited;
    });
    if (oldest == lingering_.end()) return;
    entries_.erase(*oldest);
    lingering_.erase(oldest);
  }
}

void Commands::forget_if_finished(const std::string& op_id) {
  Entry* entry = find(op_id);
  if (entry == nullptr || !entry->operation->released() || !entry->operation->finished()) return;
  entries_.erase(op_id);
  std::erase(lingering_, op_id);
  std::erase(failed_, op_id);
}

// Its waiting commands still run, in a state that nobody will see again.
void Commands::close_session(const std::string& id) { sessions_.erase(id); }

std::vector<protocol::OperationStatus> Commands::operations() const {
  std::vector<protocol::OperationStatus> out;
  for (const auto& [id, entry] : entries_) {
    if (!entry.operation->released() && entry.operation->state() != State::kFailed) out.push_back(entry.operation->status());
  }
  return out;
}

std::vector<std::string> Commands::sessions() const {
  std::vector<std::string> out;
  for (const auto& [id, session] : sessions_) out.push_back(id);
  return out;
}

void Commands::repeat_all() {
  for (auto& [id, entry] : entries_) {
    Operation& operation = *entry.operation;
    if (operation.released()) continue;
    if (operation.state() == State::kFailed) tell_state(entry);
    if (operation.has_input() && operation.state() == State::kRunning) {
      peer_.send(MessageType::kStdinAck, protocol::encode(protocol::StdinAck{.op_id = id, .offset = operation.input_taken(), .closed = operation.input_closed()}));
    }
    operation.rewind();
    on_data(id);
  }
}

void Commands::kill_all() {
  for (const auto& [pid, op_id] : running_) ::kill(-pid, SIGKILL);
}

// The first shell command of the sandbox fixes what the shell is; what differs
// later is reported and never trusted or mended.
void Commands::check_shell(Entry& entry) {
  struct stat status {};
  FileIdentity now;
  if (::stat("/bin/bash", &status) == 0 || ::stat("/bin/sh", &status) == 0) {
    now = {status.st_dev, status.st_ino, status.st_size, status.st_ctim.tv_sec * 1'000'000'000 + status.st_ctim.tv_nsec};
  }
  if (!shell_) shell_ = now;
  if (!(*shell_ == now)) entry.operation->exit().shell_modified = true;
}

}  // namespace dsec::agent
