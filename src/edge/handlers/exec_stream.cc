// GET …/exec/stream: many commands over one WebSocket. The format stands in
// docs/specs/exec-stream.md.
//
// One coroutine reads the socket, one for each command writes its output; writes
// take turns. Output is read from where it is stored, at the pace of the client:
// a slow one costs no memory, and the command goes on until its output is past
// its limit. Input is taken into the command's window; a sender that overruns it
// stops its own socket only.

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/json.hpp>
#include <map>

#include "edge/exec_view.h"
#include "edge/handlers/handlers.h"
#include "model/json_text.h"
#include "model/strict_object.h"

namespace dsec::edge::handlers {

namespace json = boost::json;
using protocol::OutputStream;

namespace {

constexpr std::size_t kPart = 64 << 10;
constexpr std::size_t kMostCommands = 256;
constexpr char kStdinKind = 0;
constexpr char kStdoutKind = 1;
constexpr char kStderrKind = 2;

struct Attached {
  std::uint32_t number = 0;
  std::shared_ptr<Exec> exec;
  edge::OutputStream::Follower followers[2];
  bool started_told = false;
  bool detached = false;
  bool kill_on_disconnect = false;
  std::uint64_t stdin_acknowledged = 0;
};
using AttachedRef = std::shared_ptr<Attached>;

struct Session {
  explicit Session(SandboxRef owner) : sandbox(std::move(owner)) {}
  SandboxRef sandbox;
  std::optional<std::uint64_t> fence;
  std::unique_ptr<net::WebSocket> socket;
  Mailbox writing;
  bool open = true;
  std::map<std::uint32_t, AttachedRef> commands;
  std::size_t pumps = 0;
  Notifier pump_ended;
};
using SessionRef = std::shared_ptr<Session>;

asio::awaitable<Result<void>> tell(SessionRef session, json::object message) {
  const Mailbox::Turn turn = co_await session->writing.enter();
  if (!session->open) co_return Error(ErrorCode::kCancelled, "the stream is closed");
  co_return co_await session->socket->write(true, model::json_text(message));
}

asio::awaitable<void> tell_error(SessionRef session, std::uint32_t number, Error error) {
  const net::HttpResponse response = net::error_response(error);
  boost::system::error_code ignored;
  json::value body = json::parse(response.body, ignored);
  json::object message = body.is_object() ? body.get_object() : json::object();
  message["type"] = "error";
  message["id"] = number;
  message["status"] = response.status;
  Result<void> told = co_await tell(session, std::move(message));
  if (!told.ok()) session->open = false;
}

// Writes what one stream has; false when nothing was there.
asio::awaitable<Result<bool>> pass_output(SessionRef session, AttachedRef command, int index) {
  const OutputStream which = index == 0 ? OutputStream::kStdout : OutputStream::kStderr;
  edge::OutputStream::Follower& follower = command->followers[index];
  std::uint64_t offset = follower.position;
  DSEC_CO_ASSIGN(const std::string bytes, co_await read_output(session->sandbox, command->exec, which, offset, kPart));
  if (offset > follower.position) {
    const json::object gap{{"type", "gap"}, {"id", command->number}, {"stream", index == 0 ? "stdout" : "stderr"}, {"offset", follower.position}, {"next_offset", offset}};
    DSEC_CO_TRY(co_await tell(session, gap));
    follower.position = offset;
  }
  if (bytes.empty()) co_return false;
  std::string frame;
  frame.reserve(bytes.size() + 5);
  frame.push_back(index == 0 ? kStdoutKind : kStderrKind);
  for (int shift = 24; shift >= 0; shift -= 8) frame.push_back(static_cast<char>(command->number >> shift));
  frame += bytes;
  {
    const Mailbox::Turn turn = co_await session->writing.enter();
    if (!session->open) co_return Error(ErrorCode::kCancelled, "the stream is closed");
    DSEC_CO_TRY(co_await session->socket->write(false, frame));
  }
  follower.position += bytes.size();
  command->exec->stream(which).trim();
  command->exec->acknowledge();
  co_return true;
}

asio::awaitable<Result<void>> pass_all(SessionRef session, AttachedRef command) {
  Exec& exec = *command->exec;
  while (session->open && !command->detached) {
    if (!command->started_told && exec.started()) {
      command->started_told = true;
      json::object started{{"type", "started"}, {"id", command->number}, {"exec_id", exec.id()}};
      if (exec.pid() != 0) started["pid"] = exec.pid();
      DSEC_CO_TRY(co_await tell(session, std::move(started)));
      continue;
    }
    if (exec.stdin_offset() - exec.stdin_pending() > command->stdin_acknowledged) {
      command->stdin_acknowledged = exec.stdin_offset() - exec.stdin_pending();
      DSEC_CO_TRY(co_await tell(session, {{"type", "stdin_ack"}, {"id", command->number}, {"offset", command->stdin_acknowledged}}));
    }
    DSEC_CO_ASSIGN(const bool out, co_await pass_output(session, command, 0));
    DSEC_CO_ASSIGN(const bool err, co_await pass_output(session, command, 1));
    if (out || err) continue;
    if (exec.finished()) break;
    co_await exec.changed().wait(kNoInstant);
  }
  if (!session->open || command->detached) co_return Result<void>();
  DSEC_CO_ASSIGN(json::object exited, co_await exec_json(session->sandbox, command->exec, ExecDetail::kSummary));
  exited["type"] = "exited";
  exited["id"] = command->number;
  co_return co_await tell(session, std::move(exited));
}

asio::awaitable<void> pump(SessionRef session, AttachedRef command) {
  for (int i = 0; i < 2; ++i)
    command->exec->stream(i == 0 ? OutputStream::kStdout : OutputStream::kStderr).add_follower(command->followers[i]);
  Result<void> outcome;
  try {
    outcome = co_await pass_all(session, command);
  } catch (const boost::system::system_error&) {
    // The loop ends.
  }
  for (int i = 0; i < 2; ++i)
    command->exec->stream(i == 0 ? OutputStream::kStdout : OutputStream::kStderr).remove_follower(command->followers[i]);
  command->exec->acknowledge();
  if (!outcome.ok() && session->open) co_await tell_error(session, command->number, outcome.error());
  if (const auto found = session->commands.find(command->number); found != session->commands.end() && found->second == command)
    session->commands.erase(found);
  --session->pumps;
  session->pump_ended.notify();
}

// The stream stays open over any number of pauses; what it asks of the payload ends them.
asio::awaitable<Result<void>> wake_for(SessionRef session) {
  LiveSandbox& sandbox = *session->sandbox;
  if (session->fence && !sandbox.passes(*session->fence)) co_return Error(ErrorCode::kConflict, "fenced: a higher fence has been seen");
  co_return co_await sandbox.wake(session->fence, sandbox.context().clock.now() + sandbox.context().limits.resume_deadline);
}

void attach(SessionRef session, AttachedRef command) {
  session->commands[command->number] = command;
  ++session->pumps;
  asio::co_spawn(session->sandbox->context().io, [session, command] { return pump(session, command); }, asio::detached);
}

asio::awaitable<Result<void>> on_text(SessionRef session, const std::string& text, std::uint32_t& number) {
  DSEC_CO_ASSIGN(const json::value value, model::parse_json(text));
  model::StrictObject fields(value, "");
  std::string type;
  std::uint64_t id = 0;
  fields.read("type", type);
  fields.read("id", id);
  if (id > UINT32_MAX) co_return invalid_argument("id: must fit into 32 bits");
  number = static_cast<std::uint32_t>(id);
  const auto known = session->commands.find(number);

  if (type == "start" || type == "attach") {
    if (known != session->commands.end()) co_return Error(ErrorCode::kConflict, "id: is in use on this stream");
    if (session->commands.size() >= kMostCommands) co_return Error(ErrorCode::kExhausted, "too many commands on one stream");
    auto command = std::make_shared<Attached>();
    command->number = number;
    if (type == "start") {
      const json::value* exec = fields.take("exec");
      const json::value* terminal = fields.take("terminal");
      DSEC_CO_TRY(fields.finish());
      if (exec == nullptr || !exec->is_object()) co_return invalid_argument("exec is missing");
      json::object body = exec->get_object();
      if (terminal != nullptr) body["terminal"] = *terminal;
      if (!body.contains("stdin") && !body.contains("stdin_base64") && !body.contains("open_stdin")) body["open_stdin"] = true;
      const std::string request_text = model::json_text(body);
      DSEC_CO_ASSIGN(ExecRequest request, parse_exec_request(request_text));
      command->kill_on_disconnect = request.kill_on_disconnect;
      if (!session->sandbox->knows_key(request.key)) DSEC_CO_TRY(co_await wake_for(session));
      DSEC_CO_ASSIGN(const LiveSandbox::Started started, session->sandbox->start_exec(std::move(request), request_text));
      command->exec = started.exec;
    } else {
      std::string exec_id;
      fields.read("exec_id", exec_id);
      fields.read("stdout_offset", command->followers[0].position);
      fields.read("stderr_offset", command->followers[1].position);
      DSEC_CO_TRY(fields.finish());
      command->exec = session->sandbox->find_exec(exec_id);
      if (!command->exec) co_return Error(ErrorCode::kNotFound, "there is no command \"" + exec_id.substr(0, 64) + "\" in this sandbox");
    }
    attach(session, command);
    co_return Result<void>();
  }

  if (known == session->commands.end()) co_return Error(ErrorCode::kNotFound, "id: no such command on this stream");
  const AttachedRef command = known->second;
  Exec& exec = *command->exec;
  if (type == "stdin_end") {
    DSEC_CO_TRY(fields.finish());
    if (!exec.finished()) DSEC_CO_TRY(co_await wake_for(session));
    co_return exec.write_stdin("", true);
  }
  if (type == "resize") {
    std::uint16_t rows = 0, columns = 0;
    fields.read("rows", rows);
    fields.read("columns", columns);
    DSEC_CO_TRY(fields.finish());
    if (rows == 0 || columns == 0) co_return invalid_argument("rows and columns must not be 0");
    if (!exec.finished()) DSEC_CO_TRY(co_await wake_for(session));
    co_return exec.resize(rows, columns);
  }
  if (type == "signal") {
    const json::value* signal = fields.take("signal");
    DSEC_CO_TRY(fields.finish());
    if (signal == nullptr) co_return invalid_argument("signal is missing");
    DSEC_CO_ASSIGN(const int wanted, parse_signal(signal->is_string() ? std::string(signal->get_string()) : model::json_text(*signal)));
    if (wanted == 9) {
      exec.kill(Exec::KillReason::kCaller);
      co_return Result<void>();
    }
    if (!exec.finished()) DSEC_CO_TRY(co_await wake_for(session));
    co_return exec.signal(wanted, protocol::SignalScope::kGroup);
  }
  if (type == "detach") {
    DSEC_CO_TRY(fields.finish());
    command->detached = true;
    command->kill_on_disconnect = false;
    session->commands.erase(known);
    exec.changed().notify();
    co_return Result<void>();
  }
  co_return invalid_argument("type: \"" + type.substr(0, 32) + "\" is not known");
}

asio::awaitable<Result<void>> on_binary(SessionRef session, std::string_view bytes, std::uint32_t& number) {
  if (bytes.size() < 5 || bytes[0] != kStdinKind) co_return invalid_argument("a binary frame is the byte 0, a number of four bytes, and input");
  number = 0;
  for (int i = 1; i <= 4; ++i) number = number << 8 | static_cast<unsigned char>(bytes[static_cast<std::size_t>(i)]);
  const auto known = session->commands.find(number);
  if (known == session->commands.end()) co_return Error(ErrorCode::kNotFound, "id: no such command on this stream");
  const AttachedRef command = known->second;
  bytes.remove_prefix(5);
  if (!command->exec->finished()) DSEC_CO_TRY(co_await wake_for(session));
  while (!bytes.empty()) {
    while (command->exec->stdin_room() == 0 && !command->exec->finished() && !command->exec->stdin_closed() && session->open)
      co_await command->exec->changed().wait(kNoInstant);
    const std::size_t n = std::min(bytes.size(), std::max<std::size_t>(command->exec->stdin_room(), 1));
    DSEC_CO_TRY(command->exec->write_stdin(bytes.substr(0, n), false));
    bytes.remove_prefix(n);
  }
  co_return Result<void>();
}

}  // namespace

asio::awaitable<Result<void>> exec_stream(net::Exchange& exchange, SandboxRef sandbox) {
  if (!exchange.request().websocket_upgrade) co_return invalid_argument("this path takes a WebSocket");
  if (sandbox->over()) co_return Error(ErrorCode::kConflict, "the sandbox has ended");
  const auto session = std::make_shared<Session>(sandbox);
  DSEC_CO_ASSIGN(session->fence, fence_of(exchange.request()));
  DSEC_CO_ASSIGN(session->socket, co_await exchange.accept_websocket());
  while (session->open) {
    Result<net::WebSocket::Message> message = co_await session->socket->read();
    if (!message.ok()) break;
    std::uint32_t number = 0;
    Result<void> done = message->text ? co_await on_text(session, message->bytes, number) : co_await on_binary(session, message->bytes, number);
    if (!done.ok()) co_await tell_error(session, number, done.error());
  }
  session->open = false;
  const std::map<std::uint32_t, AttachedRef> left = session->commands;
  for (const auto& [number, command] : left) {
    if (command->kill_on_disconnect) command->exec->kill(Exec::KillReason::kCaller);
    command->exec->changed().notify();
  }
  // The socket is the exchange's: nobody may use it after this returns.
  while (session->pumps > 0) co_await session->pump_ended.wait(kNoInstant);
  co_await session->socket->close(1000, "");
  session->socket.reset();
  co_return Result<void>();
}

}  // namespace dsec::edge::handlers
