#include "agent/command_plan.h"

namespace dsec::agent {
namespace {

constexpr std::size_t kIdLimit = 128;
constexpr std::size_t kCandidateLimit = 128;

bool has_nul(const std::string& text) { return text.find('\0') != std::string::npos; }

}  // namespace

Result<void> check_exec_start(const protocol::ExecStart& request) {
  if (request.op_id.empty() || request.op_id.size() > kIdLimit) return invalid_argument("an op_id has 1 to 128 bytes");
  if (request.session.size() > kIdLimit) return invalid_argument("a session id has at most 128 bytes");
  if (request.argv.empty() == request.shell.empty()) return invalid_argument("exactly one of argv and shell");
  if (!request.argv.empty() && request.argv[0].empty()) return invalid_argument("argv[0] is empty");
  bool nul = has_nul(request.shell) || has_nul(request.cwd) || has_nul(request.user);
  for (const auto& argument : request.argv) nul = nul || has_nul(argument);
  for (const auto& variable : request.env) {
    nul = nul || has_nul(variable);
    const std::size_t equals = variable.find('=');
    if (equals == std::string::npos || equals == 0) return invalid_argument("a variable is NAME=value");
  }
  if (nul) return invalid_argument("a text holds a NUL byte");
  return {};
}

Environment make_environment(const protocol::ExecStart& request, const Account& account, const Environment* session) {
  Environment out;
  if (!request.clear_env) {
    if (session != nullptr) {
      out = *session;
    } else {
      out["PATH"] = kDefaultPath;
      out["HOME"] = account.home;
      out["SHELL"] = account.shell;
      if (!account.name.empty()) out["USER"] = out["LOGNAME"] = account.name;
    }
    if (request.terminal.wanted && !out.contains("TERM")) out["TERM"] = "xterm-256color";
  }
  for (const std::string& variable : request.env) {
    const std::size_t equals = variable.find('=');
    out[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  return out;
}

std::vector<std::string> to_strings(const Environment& environment) {
  std::vector<std::string> out;
  out.reserve(environment.size());
  for (const auto& [name, value] : environment) out.push_back(name + "=" + value);
  return out;
}

std::vector<std::string> candidates(const std::string& name, const Environment& environment) {
  if (name.find('/') != std::string::npos) return {name};
  const auto path = environment.find("PATH");
  std::string_view rest = path == environment.end() ? kDefaultPath : std::string_view(path->second);
  std::vector<std::string> out;
  for (;;) {
    const std::size_t colon = rest.find(':');
    const std::string_view directory = rest.substr(0, colon);
    out.push_back(join_path(directory.empty() ? "." : directory, name));
    if (colon == std::string_view::npos || out.size() == kCandidateLimit) return out;
    rest.remove_prefix(colon + 1);
  }
}

std::string join_path(std::string_view base, std::string_view path) {
  if (path.starts_with('/')) return std::string(path);
  std::string out(base);
  if (!out.ends_with('/')) out += '/';
  return out.append(path);
}

}  // namespace dsec::agent
