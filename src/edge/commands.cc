// Commands and files for a caller in the same process: the steps of a build.
#include "edge/edge.h"
#include "edge/exec_view.h"
#include "edge/file_transfer.h"

namespace dsec::edge {

namespace {

constexpr std::size_t kOutputPart = 64 << 10;
constexpr auto kFileDeadline = std::chrono::seconds(60);

std::string why_of(const Exec& exec) {
  switch (exec.status()) {
    case ExecStatus::kRunning:
    case ExecStatus::kExited: return "";
    case ExecStatus::kSignaled: return "ended by " + signal_name(exec.result().signal);
    case ExecStatus::kTimedOut: return "it took too long";
    case ExecStatus::kKilled: return "killed";
    case ExecStatus::kOom: return "out of memory";
    case ExecStatus::kLost: return "the sandbox was lost";
    case ExecStatus::kFailed: return "it did not start: " + exec.result().error;
  }
  return "";
}

// What is there now; false when there was nothing.
asio::awaitable<Result<bool>> pass_on(std::shared_ptr<LiveSandbox> sandbox, std::shared_ptr<Exec> exec, std::array<std::uint64_t, 2>& offsets,
                                      const std::function<void(std::string_view)>& on_output) {
  bool any = false;
  for (int i = 0; i < 2; ++i) {
    DSEC_CO_ASSIGN(const std::string bytes,
                   co_await read_output(sandbox, exec, i == 0 ? protocol::OutputStream::kStdout : protocol::OutputStream::kStderr, offsets[i], kOutputPart));
    offsets[i] += bytes.size();
    any = any || !bytes.empty();
    if (!bytes.empty() && on_output) on_output(bytes);
  }
  co_return any;
}

}  // namespace

asio::awaitable<Result<CommandEnd>> Edge::run_command(CommandOrder order) {
  DSEC_CO_ASSIGN(const std::shared_ptr<LiveSandbox> sandbox, find(order.principal, order.sandbox));
  const LiveSandbox::Use use(sandbox);
  ExecRequest request{.argv = std::move(order.argv)};
  request.env = std::move(order.env);
  request.timeout_ms = order.timeout_ms;
  DSEC_CO_ASSIGN(const LiveSandbox::Started started, sandbox->start_exec(std::move(request), ""));
  const std::shared_ptr<Exec> exec = started.exec;
  std::array<std::uint64_t, 2> offsets{};
  for (;;) {
    const bool finished = exec->finished();
    DSEC_CO_ASSIGN(const bool any, co_await pass_on(sandbox, exec, offsets, order.on_output));
    if (any) continue;
    if (finished) break;
    if (!exec->finished()) co_await exec->changed().wait(kNoInstant);
  }
  co_return CommandEnd{.exit_code = exec->result().exit_code, .why = why_of(*exec), .infra = exec->result().infra};
}

asio::awaitable<Result<void>> Edge::put_file(FileOrder order) {
  DSEC_CO_ASSIGN(const std::shared_ptr<LiveSandbox> sandbox, find(order.principal, order.sandbox));
  const LiveSandbox::Use use(sandbox);
  DSEC_CO_ASSIGN(const auto transfer, FileTransfer::begin(sandbox, {.verb = protocol::FileVerb::kWrite, .path = order.path, .user = order.user, .mode = order.mode}));
  const auto by = [] { return std::chrono::steady_clock::now() + kFileDeadline; };
  std::string_view rest = order.bytes;
  do {
    const std::string_view part = rest.substr(0, protocol::kDataChunk);
    rest.remove_prefix(part.size());
    DSEC_CO_TRY(co_await transfer->send_data(part, rest.empty(), by()));
  } while (!rest.empty());
  DSEC_CO_TRY(co_await transfer->next_reply(by()));
  co_return Result<void>();
}

}  // namespace dsec::edge
