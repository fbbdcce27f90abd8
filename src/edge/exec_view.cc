#include "edge/exec_view.h"

#include <boost/json.hpp>

#include "base/encoding.h"
#include "model/time_text.h"
#include "net/blocking.h"

namespace dsec::edge {

namespace json = boost::json;

asio::awaitable<Result<std::string>> read_output(std::shared_ptr<LiveSandbox> sandbox, std::shared_ptr<Exec> exec,
                                                 protocol::OutputStream which, std::uint64_t& offset, std::size_t most) {
  const OutputStream& stream = exec->stream(which);
  offset = stream.next_readable(offset);
  std::optional<OutputStream::Piece> piece = stream.at(offset, most);
  if (!piece) co_return std::string();
  offset = piece->offset;
  if (!piece->chunk) co_return std::move(piece->bytes);
  // The sandbox, and with it the spool, outlives the job.
  co_return co_await net::on_pool(sandbox->context().calls, [sandbox, chunk = *piece->chunk, from = offset, most] {
    return sandbox->spool().read(chunk, from, most);
  });
}

namespace {

double ms(std::uint64_t usec) { return static_cast<double>(usec) / 1000.0; }

asio::awaitable<Result<bool>> add_output(json::object& out, std::shared_ptr<LiveSandbox> sandbox, std::shared_ptr<Exec> exec, int index) {
  const protocol::OutputStream which = index == 0 ? protocol::OutputStream::kStdout : protocol::OutputStream::kStderr;
  const char* name = index == 0 ? "stdout" : "stderr";
  const OpFinishedRecord::Stream& stream = exec->result().streams[index];
  const ExecRequest& request = exec->request();
  // A result of any size would have to be in memory at once: beyond this it is read by offset.
  const std::uint64_t most = request.output_limit_given ? std::max(request.output_limit_bytes, kDefaultInlineOutput) : kDefaultInlineOutput;
  const std::uint64_t end = std::min(stream.stored, most);
  std::string bytes;
  for (std::uint64_t offset = 0; offset < end;) {
    DSEC_CO_ASSIGN(const std::string part, co_await read_output(sandbox, exec, which, offset, end - offset));
    if (part.empty()) break;
    bytes += part;
    offset += part.size();
  }
  bool lossy = false;
  out[name] = to_utf8(bytes, &lossy);
  if (lossy) out[std::string(name) + "_base64"] = to_base64(bytes);
  out[std::string(name) + "_bytes"] = stream.total;
  co_return bytes.size() < stream.total;
}

}  // namespace

asio::awaitable<Result<json::object>> exec_json(std::shared_ptr<LiveSandbox> sandbox, std::shared_ptr<Exec> exec, ExecDetail detail) {
  json::object out;
  out.reserve(32);
  out["exec_id"] = exec->id();
  out["state"] = exec->finished() ? "ended" : "running";
  if (detail == ExecDetail::kSummary) out["command"] = to_utf8(exec->command(), nullptr);
  if (!exec->request().session.empty()) out["session"] = exec->request().session;
  if (!exec->request().key.empty()) out["key"] = exec->request().key;
  out["accepted_at"] = model::time_text(exec->accepted_at_ms());
  if (!exec->finished()) {
    out["started"] = exec->started();
    if (exec->pid() != 0) out["pid"] = exec->pid();
    out["stdout_bytes"] = exec->stream(protocol::OutputStream::kStdout).total();
    out["stderr_bytes"] = exec->stream(protocol::OutputStream::kStderr).total();
    co_return out;
  }
  const OpFinishedRecord& result = exec->result();
  out["status"] = to_string(exec->status());
  if (result.signal != 0) {
    out["signal"] = signal_name(result.signal);
    out["exit_code"] = nullptr;
  } else if (exec->status() == ExecStatus::kLost) {
    out["exit_code"] = nullptr;
  } else {
    out["exit_code"] = result.exit_code;
  }
  if (!result.error.empty()) out["error"] = to_utf8(result.error, nullptr);
  out["timed_out"] = exec->status() == ExecStatus::kTimedOut;
  out["infra"] = result.infra;
  out["duration_ms"] = ms(result.duration_usec);
  out["active_ms"] = ms(result.duration_usec - result.frozen_usec);
  out["frozen_ms"] = ms(result.frozen_usec);
  out["cpu_ms"] = ms(result.cpu_usec);
  out["stalled_ms"] = ms(result.stalled_usec);
  out["memory_peak_bytes"] = result.memory_peak_bytes;
  out["oom_kills"] = result.oom_kills;
  out["shell_modified"] = result.shell_modified;
  out["started_at"] = model::time_text(result.started_at_ms);
  out["finished_at"] = model::time_text(result.finished_at_ms);
  if (detail == ExecDetail::kSummary) {
    out["stdout_bytes"] = result.streams[0].total;
    out["stderr_bytes"] = result.streams[1].total;
    co_return out;
  }
  DSEC_CO_ASSIGN(const bool cut_out, co_await add_output(out, sandbox, exec, 0));
  DSEC_CO_ASSIGN(const bool cut_err, co_await add_output(out, sandbox, exec, 1));
  out["truncated"] = cut_out || cut_err;
  co_return out;
}

}  // namespace dsec::edge
