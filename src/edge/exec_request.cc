#include "edge/exec_request.h"

#include <array>
#include <charconv>

#include "base/encoding.h"
#include "model/sha256.h"
#include "model/strict_object.h"

namespace dsec::edge {
namespace {

constexpr std::size_t kMaxArguments = 4096;
// Linux's own limit of one text of an execve, its NUL included (MAX_ARG_STRLEN).
constexpr std::size_t kMaxText = 128 << 10;
constexpr std::int64_t kMaxMilliseconds = 30LL * 24 * 3600 * 1000;

Result<void> check_text(std::size_t bytes, const std::string& what) {
  if (bytes < kMaxText) return {};
  return Error(ErrorCode::kTooLarge, what + " is longer than 128 KiB, which Linux takes of no single text: write a file, or use stdin");
}

bool has_nul(std::string_view text) { return text.find('\0') != std::string_view::npos; }

Result<void> check(const ExecRequest& request) {
  if (request.argv.empty() == request.shell.empty()) return invalid_argument("exactly one of argv and shell is needed");
  if (request.argv.size() > kMaxArguments) return invalid_argument("argv has more than 4096 entries");
  std::size_t bytes = request.shell.size();
  for (const std::string& part : request.argv) {
    if (has_nul(part)) return invalid_argument("argv holds a zero byte");
    DSEC_TRY(check_text(part.size(), "an argument"));
    bytes += part.size() + 1;
  }
  DSEC_TRY(check_text(request.shell.size(), "shell"));
  if (!request.argv.empty() && request.argv[0].empty()) return invalid_argument("argv[0] is empty");
  if (has_nul(request.shell) || has_nul(request.cwd) || has_nul(request.user) || has_nul(request.session))
    return invalid_argument("a text holds a zero byte");
  for (const auto& [name, value] : request.env) {
    if (name.empty() || name.find('=') != std::string::npos || has_nul(name) || has_nul(value))
      return invalid_argument("env: \"" + name.substr(0, 64) + "\" is not a variable");
    DSEC_TRY(check_text(name.size() + value.size() + 1, "env: " + name.substr(0, 64)));
    bytes += name.size() + value.size() + 2;
  }
  if (bytes > protocol::kMaxExecArguments) return Error(ErrorCode::kTooLarge, "arguments and environment are larger than 1 MiB: write a file, or use stdin");
  if (!request.cwd.empty() && request.cwd[0] != '/') return invalid_argument("cwd is not absolute");
  if (request.session.size() > 64) return invalid_argument("session is longer than 64 bytes");
  if (request.key.size() > 128) return invalid_argument("key is longer than 128 bytes");
  const auto in_range = [](std::int64_t ms) { return ms >= 0 && ms <= kMaxMilliseconds; };
  if (!in_range(request.timeout_ms)) return invalid_argument("timeout_ms is not in 0 to 30 days");
  if (!in_range(request.deadline_ms)) return invalid_argument("deadline_ms is not in 0 to 30 days");
  if (request.wait_ms && !in_range(*request.wait_ms)) return invalid_argument("wait_ms is not in 0 to 30 days");
  if (request.output_limit_bytes > kMaxOutputLimit) return invalid_argument("output_limit_bytes is larger than 512 MiB");
  return {};
}

struct SignalName {
  std::string_view name;
  int number;
};
constexpr std::array<SignalName, 31> kSignals = {{
    {"HUP", 1},   {"INT", 2},   {"QUIT", 3},  {"ILL", 4},   {"TRAP", 5},    {"ABRT", 6},  {"BUS", 7},   {"FPE", 8},
    {"KILL", 9},  {"USR1", 10}, {"SEGV", 11}, {"USR2", 12}, {"PIPE", 13},   {"ALRM", 14}, {"TERM", 15}, {"STKFLT", 16},
    {"CHLD", 17}, {"CONT", 18}, {"STOP", 19}, {"TSTP", 20}, {"TTIN", 21},   {"TTOU", 22}, {"URG", 23},  {"XCPU", 24},
    {"XFSZ", 25}, {"VTALRM", 26}, {"PROF", 27}, {"WINCH", 28}, {"IO", 29}, {"PWR", 30}, {"SYS", 31},
}};

}  // namespace

Result<ExecRequest> parse_exec_request(std::string_view json) {
  DSEC_ASSIGN(const boost::json::value value, model::parse_json(json));
  ExecRequest out;
  std::string stdin_base64;
  std::int64_t wait = -1;
  model::StrictObject fields(value, "");
  fields.read("argv", out.argv);
  fields.read("shell", out.shell);
  fields.read("session", out.session);
  fields.read("cwd", out.cwd);
  fields.read("env", out.env);
  fields.read("user", out.user);
  out.stdin_given = fields.has("stdin") || fields.has("stdin_base64");
  const bool both = fields.has("stdin") && fields.has("stdin_base64");
  fields.read("stdin", out.stdin_bytes);
  fields.read("stdin_base64", stdin_base64);
  fields.read("open_stdin", out.open_stdin);
  fields.read("timeout_ms", out.timeout_ms);
  fields.read("deadline_ms", out.deadline_ms);
  out.output_limit_given = fields.has("output_limit_bytes");
  fields.read("output_limit_bytes", out.output_limit_bytes);
  fields.read("background", out.background);
  fields.read("key", out.key);
  if (fields.has("wait_ms")) wait = 0;
  fields.read("wait_ms", wait);
  fields.read("kill_on_disconnect", out.kill_on_disconnect);
  if (const boost::json::value* terminal = fields.take("terminal")) {
    if (terminal->is_bool()) {
      out.terminal.wanted = terminal->get_bool();
    } else {
      model::StrictObject size(*terminal, "terminal");
      out.terminal.wanted = true;
      size.read("rows", out.terminal.rows);
      size.read("columns", out.terminal.columns);
      DSEC_TRY(size.finish());
    }
  }
  DSEC_TRY(fields.finish());
  if (both) return invalid_argument("stdin and stdin_base64 exclude one another");
  if (!stdin_base64.empty()) {
    DSEC_ASSIGN(out.stdin_bytes, from_base64(stdin_base64).within("stdin_base64"));
  }
  if (wait >= 0) out.wait_ms = wait;
  DSEC_TRY(check(out));
  return out;
}

std::string fingerprint(const ExecRequest& request) {
  // Each text with its length before it, so that no two requests look alike.
  std::string canonical;
  const auto add = [&canonical](std::string_view text) {
    canonical += std::to_string(text.size()) + ":";
    canonical += text;
  };
  add("exec/1");
  add(std::to_string(request.argv.size()));
  for (const std::string& part : request.argv) add(part);
  add(request.shell);
  add(request.session);
  add(request.cwd);
  add(std::to_string(request.env.size()));
  for (const auto& [name, value] : request.env) {
    add(name);
    add(value);
  }
  add(request.user);
  add(request.stdin_bytes);
  add(std::to_string(request.stdin_given) + std::to_string(request.open_stdin) + std::to_string(request.terminal.wanted));
  add(std::to_string(request.timeout_ms));
  add(std::to_string(request.output_limit_bytes));
  return model::sha256(canonical);
}

Result<int> parse_signal(std::string_view text) {
  int number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() && number >= 1 && number <= 64) return number;
  std::string_view name = text;
  if (name.starts_with("SIG")) name.remove_prefix(3);
  for (const SignalName& entry : kSignals)
    if (entry.name == name) return entry.number;
  return invalid_argument("\"" + std::string(text.substr(0, 32)) + "\" is not a signal");
}

std::string signal_name(int number) {
  for (const SignalName& entry : kSignals)
    if (entry.number == number) return "SIG" + std::string(entry.name);
  return "SIG" + std::to_string(number);
}

}  // namespace dsec::edge
