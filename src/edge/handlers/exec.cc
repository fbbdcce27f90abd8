// Commands: start, list, look, wait, read their output, feed and signal them.

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/json.hpp>

#include "base/encoding.h"
#include "edge/exec_view.h"
#include "edge/handlers/handlers.h"
#include "net/query.h"
#include "model/json_text.h"
#include "model/strict_object.h"

namespace dsec::edge::handlers {

using net::Query;

namespace json = boost::json;

namespace {

constexpr std::size_t kExecBody = 16 << 20;
constexpr std::size_t kControlBody = 64 << 10;
constexpr std::size_t kOutputPart = 256 << 10;
constexpr std::uint64_t kMaxWaitMs = 3'600'000;
// Most commands are over by then; only a longer wait looks whether the client is still there.
constexpr auto kShortWait = std::chrono::milliseconds(100);

// A caller that wants no result at once still wants its command to be taken.
constexpr auto kLeastPatience = std::chrono::seconds(1);

using ExecRef = std::shared_ptr<Exec>;

asio::awaitable<void> wait_finished(ExecRef exec, Instant by, bool started_is_enough) {
  while (!exec->finished() && !(started_is_enough && exec->started()) && std::chrono::steady_clock::now() < by)
    co_await exec->changed().wait(by);
}

// False when the client has gone away meanwhile.
asio::awaitable<bool> wait_with_client(net::Exchange& exchange, ExecRef exec, Instant by, bool started_is_enough) {
  using namespace asio::experimental::awaitable_operators;
  co_await wait_finished(exec, std::min(by, std::chrono::steady_clock::now() + kShortWait), started_is_enough);
  if (exec->finished() || (started_is_enough && exec->started()) || std::chrono::steady_clock::now() >= by) co_return true;
  const auto first = co_await (wait_finished(exec, by, started_is_enough) || exchange.client_gone());
  co_return first.index() == 0;
}

Instant wait_until(std::uint64_t wait_ms) { return std::chrono::steady_clock::now() + std::chrono::milliseconds(std::min(wait_ms, kMaxWaitMs)); }

asio::awaitable<Result<void>> answer(net::Exchange& exchange, SandboxRef sandbox, ExecRef exec, bool replayed) {
  DSEC_CO_ASSIGN(json::object out, co_await exec_json(sandbox, exec, ExecDetail::kResult));
  if (replayed) out["replayed"] = true;
  co_return co_await exchange.respond(net::json_response(exec->finished() ? 200 : 202, model::json_text(out)));
}

asio::awaitable<Result<void>> start(net::Exchange& exchange, SandboxRef sandbox) {
  DSEC_CO_ASSIGN(const std::string body, co_await exchange.read_body(kExecBody));
  DSEC_CO_ASSIGN(ExecRequest request, parse_exec_request(body));
  const bool background = request.background;
  const bool kill = request.kill_on_disconnect;
  const std::optional<std::int64_t> wait_ms = request.wait_ms;
  // What has run is told, not run again: nothing has to be woken for it.
  if (!sandbox->knows_key(request.key)) {
    std::optional<Duration> within;
    if (request.deadline_ms > 0) within = std::chrono::milliseconds(request.deadline_ms);
    else if (wait_ms && *wait_ms > 0) within = std::max<Duration>(std::chrono::milliseconds(*wait_ms), kLeastPatience);
    DSEC_CO_TRY(co_await wake(exchange.request(), sandbox, within));
  }
  DSEC_CO_ASSIGN(const LiveSandbox::Started started, sandbox->start_exec(std::move(request), body));
  const ExecRef exec = started.exec;
  Instant by = kNoInstant;
  if (wait_ms) by = wait_until(static_cast<std::uint64_t>(*wait_ms));
  if (!co_await wait_with_client(exchange, exec, by, background)) {
    if (kill) exec->kill(Exec::KillReason::kCaller);
    co_return Error(ErrorCode::kCancelled, "the client has gone away");
  }
  co_return co_await answer(exchange, std::move(sandbox), exec, started.replayed);
}

asio::awaitable<Result<void>> list(net::Exchange& exchange, SandboxRef sandbox) {
  DSEC_CO_ASSIGN(const Query query, Query::parse(exchange.request(), {"state", "limit", "cursor"}));
  DSEC_CO_ASSIGN(const std::uint64_t limit, query.number("limit", 1000));
  if (limit == 0 || limit > 1000) co_return invalid_argument("limit: must be between 1 and 1000");
  const std::string state = query.text("state");
  if (!state.empty() && state != "running" && state != "ended") co_return invalid_argument("state: must be running or ended");
  std::vector<ExecRef> chosen;
  std::string next;
  for (auto at = sandbox->execs().upper_bound(query.text("cursor")); at != sandbox->execs().end(); ++at) {
    if (!state.empty() && at->second->finished() != (state == "ended")) continue;
    if (chosen.size() == limit) {
      next = chosen.back()->id();
      break;
    }
    chosen.push_back(at->second);
  }
  std::sort(chosen.begin(), chosen.end(), [](const ExecRef& a, const ExecRef& b) {
    return std::pair(a->accepted_at_ms(), a->id()) < std::pair(b->accepted_at_ms(), b->id());
  });
  json::array items;
  for (const ExecRef& exec : chosen) {
    DSEC_CO_ASSIGN(json::object item, co_await exec_json(sandbox, exec, ExecDetail::kSummary));
    items.push_back(std::move(item));
  }
  json::object out{{"items", std::move(items)}};
  out["next_cursor"] = next.empty() ? json::value(nullptr) : json::value(next);
  co_return co_await exchange.respond(net::json_response(200, model::json_text(out)));
}

asio::awaitable<Result<void>> look(net::Exchange& exchange, SandboxRef sandbox, ExecRef exec) {
  DSEC_CO_ASSIGN(const Query query, Query::parse(exchange.request(), {"wait_ms"}));
  DSEC_CO_ASSIGN(const std::uint64_t wait_ms, query.number("wait_ms", 0));
  if (wait_ms > 0 && !co_await wait_with_client(exchange, exec, wait_until(wait_ms), false))
    co_return Error(ErrorCode::kCancelled, "the client has gone away");
  DSEC_CO_ASSIGN(json::object out, co_await exec_json(sandbox, exec, ExecDetail::kResult));
  co_return co_await exchange.respond(net::json_response(200, model::json_text(out)));
}

// The bytes as they are; X-Dsec-Offset says where they begin, X-Dsec-End whether more can come.
asio::awaitable<Result<void>> output(net::Exchange& exchange, SandboxRef sandbox, ExecRef exec) {
  DSEC_CO_ASSIGN(const Query query, Query::parse(exchange.request(), {"stream", "offset", "length", "wait_ms", "format"}));
  const std::string name = query.has("stream") ? query.text("stream") : "stdout";
  if (name != "stdout" && name != "stderr") co_return invalid_argument("stream: must be stdout or stderr");
  const std::string format = query.has("format") ? query.text("format") : "raw";
  if (format != "raw" && format != "json") co_return invalid_argument("format: must be raw or json");
  DSEC_CO_ASSIGN(std::uint64_t offset, query.number("offset", 0));
  DSEC_CO_ASSIGN(const std::uint64_t length, query.number("length", kOutputPart));
  DSEC_CO_ASSIGN(const std::uint64_t wait_ms, query.number("wait_ms", 0));
  if (length == 0) co_return invalid_argument("length: must not be 0");
  const protocol::OutputStream which = name == "stdout" ? protocol::OutputStream::kStdout : protocol::OutputStream::kStderr;
  const OutputStream& stream = exec->stream(which);
  const Instant by = wait_until(wait_ms);
  const auto over = [&] { return stream.ended() || exec->finished(); };
  while (stream.total() <= offset && !over() && std::chrono::steady_clock::now() < by) {
    using namespace asio::experimental::awaitable_operators;
    const auto first = co_await (exec->changed().wait(by) || exchange.client_gone());
    if (first.index() == 1) co_return Error(ErrorCode::kCancelled, "the client has gone away");
  }
  DSEC_CO_ASSIGN(std::string bytes, co_await read_output(sandbox, exec, which, offset, std::min<std::uint64_t>(length, kOutputPart)));
  const std::uint64_t next = offset + bytes.size();
  const bool end = over() && next >= stream.total();
  const bool truncated = stream.stored() < stream.total();
  if (format == "json") {
    bool lossy = false;
    json::object out{{"stream", name}, {"offset", offset}, {"next_offset", next}, {"eof", end}, {"truncated", truncated}, {"total", stream.total()}};
    out["data"] = to_utf8(bytes, &lossy);
    if (lossy) out["data_base64"] = to_base64(bytes);
    co_return co_await exchange.respond(net::json_response(200, model::json_text(out)));
  }
  net::HttpResponse response;
  response.headers = {{"Content-Type", "application/octet-stream"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"X-Dsec-Offset", std::to_string(offset)},
                      {"X-Dsec-Next-Offset", std::to_string(next)},
                      {"X-Dsec-End", end ? "true" : "false"},
                      {"X-Dsec-Truncated", truncated ? "true" : "false"}};
  response.body = std::move(bytes);
  co_return co_await exchange.respond(std::move(response));
}

// Takes in all of `bytes`, as the command reads them.
asio::awaitable<Result<void>> feed(ExecRef exec, std::string_view bytes) {
  while (!bytes.empty()) {
    while (exec->stdin_room() == 0 && !exec->finished() && !exec->stdin_closed()) co_await exec->changed().wait(kNoInstant);
    const std::size_t n = std::min(bytes.size(), std::max<std::size_t>(exec->stdin_room(), 1));
    DSEC_CO_TRY(exec->write_stdin(bytes.substr(0, n), false));
    bytes.remove_prefix(n);
  }
  co_return Result<void>();
}

asio::awaitable<Result<void>> feed_from(net::Exchange& exchange, ExecRef exec, std::uint64_t skip, bool end) {
  std::vector<char> buffer(64 << 10);
  while (true) {
    DSEC_CO_ASSIGN(const std::size_t n, co_await exchange.read_some(buffer));
    if (n == 0) break;
    const std::size_t known = static_cast<std::size_t>(std::min<std::uint64_t>(skip, n));
    skip -= known;
    DSEC_CO_TRY(co_await feed(exec, std::string_view(buffer.data() + known, n - known)));
  }
  if (end) DSEC_CO_TRY(exec->write_stdin("", true));
  co_return Result<void>();
}

asio::awaitable<Result<void>> write_stdin(net::Exchange& exchange, ExecRef exec) {
  using namespace asio::experimental::awaitable_operators;
  DSEC_CO_ASSIGN(const Query query, Query::parse(exchange.request(), {"offset", "end"}));
  DSEC_CO_ASSIGN(bool end, query.flag("end"));
  const std::uint64_t have = exec->stdin_offset();
  DSEC_CO_ASSIGN(std::uint64_t offset, query.number("offset", have));
  const std::string* type = exchange.request().header("content-type");
  if (type != nullptr && type->starts_with("application/json")) {
    DSEC_CO_ASSIGN(const std::string body, co_await exchange.read_body(kExecBody));
    DSEC_CO_ASSIGN(const json::value value, model::parse_json(body));
    model::StrictObject fields(value, "");
    std::string data, data_base64;
    fields.read("data", data);
    fields.read("data_base64", data_base64);
    fields.read("offset", offset);
    fields.read("end", end);
    DSEC_CO_TRY(fields.finish());
    if (!data_base64.empty()) {
      DSEC_CO_ASSIGN(data, from_base64(data_base64).within("data_base64"));
    }
    if (offset > have) co_return Error(ErrorCode::kConflict, "offset: only " + std::to_string(have) + " bytes were taken so far");
    const std::string_view fresh = std::string_view(data).substr(std::min<std::size_t>(have - offset, data.size()));
    DSEC_CO_TRY(co_await feed(exec, fresh));
    if (end) DSEC_CO_TRY(exec->write_stdin("", true));
  } else {
    if (offset > have) co_return Error(ErrorCode::kConflict, "offset: only " + std::to_string(have) + " bytes were taken so far");
    DSEC_CO_TRY(co_await feed_from(exchange, exec, have - offset, end));
  }
  co_return co_await exchange.respond(net::json_response(200, model::json_text(json::object{{"offset", exec->stdin_offset()}})));
}

asio::awaitable<Result<void>> control(net::Exchange& exchange, SandboxRef sandbox, ExecRef exec, const std::string& verb) {
  DSEC_CO_ASSIGN(const std::string body, co_await exchange.read_body(kControlBody));
  DSEC_CO_ASSIGN(const json::value value, model::parse_json(body));
  model::StrictObject fields(value, "");
  if (verb == "signal") {
    const json::value* signal = fields.take("signal");
    std::string scope = "group";
    fields.read("scope", scope);
    DSEC_CO_TRY(fields.finish());
    if (signal == nullptr) co_return invalid_argument("signal is missing");
    const std::string text = signal->is_string() ? std::string(signal->get_string()) : model::json_text(*signal);
    DSEC_CO_ASSIGN(const int number, parse_signal(text).within("signal"));
    if (scope != "group" && scope != "process") co_return invalid_argument("scope: must be group or process");
    if (exec->finished() && !(number == 9 && exec->populated())) co_return Error(ErrorCode::kConflict, "the command has ended");
    // SIGKILL means the whole tree, wherever its processes have gone.
    if (number == 9 && scope == "group") exec->kill(Exec::KillReason::kCaller);
    else DSEC_CO_TRY(exec->signal(number, scope == "group" ? protocol::SignalScope::kGroup : protocol::SignalScope::kProcess));
  } else {
    std::uint16_t rows = 0, columns = 0;
    fields.read("rows", rows);
    fields.read("columns", columns);
    DSEC_CO_TRY(fields.finish());
    if (rows == 0 || columns == 0) co_return invalid_argument("rows and columns must not be 0");
    DSEC_CO_TRY(exec->resize(rows, columns));
  }
  DSEC_CO_ASSIGN(json::object out, co_await exec_json(sandbox, exec, ExecDetail::kSummary));
  co_return co_await exchange.respond(net::json_response(200, model::json_text(out)));
}

asio::awaitable<Result<void>> kill(net::Exchange& exchange, SandboxRef sandbox, ExecRef exec) {
  if (!exec->finished() || exec->populated()) exec->kill(Exec::KillReason::kCaller);
  co_await wait_finished(exec, std::chrono::steady_clock::now() + std::chrono::seconds(10), false);
  DSEC_CO_ASSIGN(json::object out, co_await exec_json(sandbox, exec, ExecDetail::kSummary));
  co_return co_await exchange.respond(net::json_response(200, model::json_text(out)));
}

Error wrong_method(const char* allowed) { return Error(ErrorCode::kNotFound, std::string("this path takes ") + allowed); }

}  // namespace

asio::awaitable<Result<void>> exec(net::Exchange& exchange, SandboxRef sandbox, Segments rest) {
  const std::string& method = exchange.request().method;
  if (rest.size() == 1) {
    if (method == "POST") co_return co_await start(exchange, std::move(sandbox));
    if (method == "GET") co_return co_await list(exchange, std::move(sandbox));
    co_return wrong_method("GET and POST");
  }
  if (rest.size() == 2 && rest[1] == "stream") co_return co_await exec_stream(exchange, std::move(sandbox));
  const ExecRef exec = sandbox->find_exec(rest[1]);
  if (!exec) co_return Error(ErrorCode::kNotFound, "there is no command \"" + rest[1].substr(0, 64) + "\" in this sandbox");
  if (rest.size() == 2) {
    if (method == "GET") co_return co_await look(exchange, std::move(sandbox), exec);
    if (method == "DELETE") co_return co_await kill(exchange, std::move(sandbox), exec);
    co_return wrong_method("GET and DELETE");
  }
  if (rest.size() == 3) {
    if (method == "POST" && !exec->finished()) DSEC_CO_TRY(co_await wake(exchange.request(), sandbox));
    if (rest[2] == "output" && method == "GET") co_return co_await output(exchange, std::move(sandbox), exec);
    if (rest[2] == "stdin" && method == "POST") co_return co_await write_stdin(exchange, exec);
    if ((rest[2] == "signal" || rest[2] == "resize") && method == "POST")
      co_return co_await control(exchange, std::move(sandbox), exec, rest[2]);
  }
  co_return Error(ErrorCode::kNotFound, "there is nothing at this path");
}

asio::awaitable<Result<void>> sessions(net::Exchange& exchange, SandboxRef sandbox, Segments rest) {
  if (rest.size() != 2 || exchange.request().method != "DELETE") co_return Error(ErrorCode::kNotFound, "there is nothing at this path");
  DSEC_CO_TRY(sandbox->close_session(rest[1]));
  co_return co_await exchange.respond(net::HttpResponse{.status = 204, .headers = {}, .body = {}});
}

}  // namespace dsec::edge::handlers
