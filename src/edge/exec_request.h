// What an exec call asks for: the JSON body of POST …/exec, read strictly.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "protocol/agent_messages.h"

namespace dsec::edge {

inline constexpr std::uint64_t kDefaultOutputLimit = 64 << 20;
inline constexpr std::uint64_t kMaxOutputLimit = 512 << 20;
inline constexpr std::uint64_t kDefaultInlineOutput = 4 << 20;  // of a result, per stream, when no limit was given

struct ExecRequest {
  std::vector<std::string> argv;  // exactly one of argv and shell
  std::string shell;
  std::string session;
  std::string cwd;
  std::map<std::string, std::string> env;
  std::string user;  // "" = the sandbox's
  std::string stdin_bytes;
  bool stdin_given = false;
  bool open_stdin = false;  // stays open for POST …/stdin behind stdin_bytes
  std::int64_t timeout_ms = 0;   // of un-frozen time; 0 = none
  std::int64_t deadline_ms = 0;  // of wall time from acceptance; 0 = none
  std::uint64_t output_limit_bytes = kDefaultOutputLimit;  // stored, both streams together
  bool output_limit_given = false;
  bool background = false;
  std::string key;
  std::optional<std::int64_t> wait_ms;  // nothing: until it has ended
  bool kill_on_disconnect = false;
  protocol::Terminal terminal;
};

// Unknown fields are refused with their name.
Result<ExecRequest> parse_exec_request(std::string_view json);
// SHA-256 over what defines the command: not over waits, the key and delivery.
std::string fingerprint(const ExecRequest& request);

// "SIGTERM", "TERM" or a number from 1 to 64.
Result<int> parse_signal(std::string_view text);
std::string signal_name(int number);

}  // namespace dsec::edge
