// The form of a dump: records that end in NUL, the first "DSEC-SHELL-1", the last
// "Z". A record begins with its letter:
//   C cwd   U umask   S status   E NAME=value
//   D output of `export -p`, W output of `set` (sh)
//   P shopt -p   F declare -f   X export -pf   V declare -p NAME   A alias -p   O set +o
// bash cannot hold a NUL in a variable, so no record can hold one.
#include "agent/shell_session.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace dsec::agent {
namespace {

constexpr std::string_view kFirstRecord = "DSEC-SHELL-1";

// Runs "$1" as it was typed: by eval, so that a syntax error, `set -e`, `exit` and
// aliases do what they do at a prompt. The state goes out when the shell ends or,
// should the command have set an EXIT trap of its own, before that trap. The
// command itself runs with the state's descriptor closed. `exec` and a kill leave
// no state: then the old one stays.
constexpr std::string_view kBashWrapper = R"__(__dsec_dump() {
__dsec_status=$?
if [[ -n ${__dsec_done-} ]]; then return 0; fi
__dsec_done=1
builtin unset -f __dsec_dump
{
builtin printf 'DSEC-SHELL-1\0S%s\0C%s\0U' "$__dsec_status" "$PWD"; builtin umask
builtin printf '\0O'; builtin set +o
builtin printf '\0P'; builtin shopt -p
builtin local -
builtin set +efux
builtin printf '\0F'; builtin declare -f
builtin printf '\0X'; builtin export -pf
builtin printf '\0A'; builtin alias -p
__dsec_names=()
for __dsec_n in "${!_@}" NAMES; do
case $__dsec_n in
BASH|BASHOPTS|BASHPID|BASH_ALIASES|BASH_ARG*|BASH_CMDS|BASH_COMMAND|BASH_EXECUTION_STRING|BASH_LINENO|BASH_REMATCH|BASH_SOURCE|BASH_SUBSHELL|BASH_VERS*|COMP_WORDBREAKS|DIRSTACK|EPOCH*|EUID|FUNCNAME|GROUPS|LINENO|OPTERR|OPTIND|PIPESTATUS|PPID|PWD|RANDOM|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID|_|__dsec_*) ;;
*) __dsec_names+=("$__dsec_n") ;;
esac
done
for __dsec_n in "${__dsec_names[@]}"; do
builtin printf '\0V'; builtin declare -p "$__dsec_n"
builtin declare -n __dsec_r=$__dsec_n
if [[ ${__dsec_r@a} == *x* && -v __dsec_r ]]; then builtin printf '\0E%s=%s' "$__dsec_n" "$__dsec_r"; fi
done
builtin printf '\0Z\0'
} >&987 2>/dev/null
return 0
}
__dsec_command=$1
shift
builtin shopt -s expand_aliases
builtin trap '{ __dsec_dump; } 2>/dev/null' EXIT
IFS= builtin read -r -d '' -u 986 __dsec_state
exec 986<&-
__dsec_again() { builtin unset -f __dsec_again; return "${__dsec_last-0}"; }
builtin eval "$__dsec_state" 2>/dev/null
builtin unset __dsec_state
case $- in *e*) builtin unset -f __dsec_again ;; *) __dsec_again ;; esac
builtin eval "$__dsec_command" 987>&-
{ __dsec_dump; } 2>/dev/null
builtin exit "$__dsec_status"
)__";

// What POSIX has words for: "$1" the command, "$2" the umask, then the names of
// variables that are not exported, whose values come in the environment under
// another name. No such shell can print its functions.
constexpr std::string_view kShWrapper = R"__(__dsec_dump() {
__dsec_status=$?
{ printf 'DSEC-SHELL-1\0C%s\0U' "$PWD"; umask; printf '\0D'; export -p; printf '\0W'; set; printf '\0Z\0'; } >&9 2>/dev/null
}
__dsec_command=$1
umask "$2"
shift 2
for __dsec_n; do eval "$__dsec_n=\$__dsec_v_$__dsec_n; unset __dsec_v_$__dsec_n"; done
shift $#
trap __dsec_dump EXIT
eval "$__dsec_command" 9>&-
)__";
constexpr std::string_view kPlainValuePrefix = "__dsec_v_";
// The kernel takes no longer text of an environment.
constexpr std::size_t kPlainValueLimit = 100 << 10;

std::string bash_wrapper() {
  std::string names;
  for (char first = 'A'; first <= 'z'; ++first) {
    if (first > 'Z' && first < 'a') continue;
    names.append("\"${!").append(1, first).append("@}\" ");
  }
  std::string text(kBashWrapper);
  text.replace(text.find("NAMES"), 5, names);
  return text;
}

bool is_variable_name(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  });
}

// The value of one word of `export -p`: quoted parts of either kind, or plain ones.
std::optional<std::string> unquote(std::string_view& rest) {
  std::string value;
  while (!rest.empty() && rest[0] != '\n') {
    const char quote = rest[0];
    rest.remove_prefix(1);
    if (quote == '\\') {
      if (rest.empty()) return std::nullopt;
      value += rest[0];
      rest.remove_prefix(1);
    } else if (quote == '\'') {
      const std::size_t end = rest.find('\'');
      if (end == std::string_view::npos) return std::nullopt;
      value.append(rest.substr(0, end));
      rest.remove_prefix(end + 1);
    } else if (quote == '"') {
      while (!rest.empty() && rest[0] != '"') {
        if (rest[0] == '\\' && rest.size() > 1) rest.remove_prefix(1);
        value += rest[0];
        rest.remove_prefix(1);
      }
      if (rest.empty()) return std::nullopt;
      rest.remove_prefix(1);
    } else {
      value += quote;
    }
  }
  if (!rest.empty()) rest.remove_prefix(1);
  return value;
}

// Lines NAME=word, each after `prefix`.
bool parse_assignments(std::string_view prefix, std::string_view text, Environment& out) {
  while (!text.empty()) {
    if (!text.starts_with(prefix)) return false;
    text.remove_prefix(prefix.size());
    const std::size_t end = text.find_first_of("=\n");
    if (end == std::string_view::npos) return true;
    const std::string name(text.substr(0, end));
    const bool has_value = text[end] == '=';
    text.remove_prefix(end + 1);
    if (!is_variable_name(name)) return false;
    if (!has_value) continue;
    auto value = unquote(text);
    if (!value) return false;
    out[name] = std::move(*value);
  }
  return true;
}

// Not one that the shell itself sets, or that only it may.
bool is_ordinary(std::string_view name) {
  constexpr std::string_view kOwn[] = {"_",       "DIRSTACK", "EUID",   "FUNCNAME", "GROUPS",  "HOSTNAME",  "LINENO", "OPTIND", "PIPESTATUS",
                                       "PPID",    "PS1",      "PS2",    "PS4",      "PWD",     "RANDOM",    "SECONDS", "SHELLOPTS", "SHLVL",
                                       "SRANDOM", "UID"};
  if (name.starts_with("__dsec_") || name.starts_with("BASH") || name.starts_with("EPOCH")) return false;
  return std::find(std::begin(kOwn), std::end(kOwn), name) == std::end(kOwn);
}

Result<sys::Fd> make_memory_file(std::string_view content, std::size_t size, unsigned seals) {
  sys::Fd fd(::memfd_create("state", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return errno_error("memfd_create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) return errno_error("ftruncate", errno);
  if (!content.empty() && ::pwrite(fd.get(), content.data(), content.size(), 0) != static_cast<ssize_t>(content.size())) {
    return errno_error("write the session's state", errno);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) return errno_error("seal the session's state", errno);
  return fd;
}

}  // namespace

std::string shell_quote(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out += '\'';
}

std::optional<ShellDump> parse_shell_dump(std::string_view text) {
  ShellDump dump;
  std::string parts[128];
  bool first = true;
  while (!text.empty()) {
    const std::size_t end = text.find('\0');
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view record = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (first) {
      if (record != kFirstRecord) return std::nullopt;
      first = false;
      continue;
    }
    if (record.empty()) return std::nullopt;
    const std::string_view value = record.substr(1);
    switch (record[0]) {
      case 'Z': {
        if (!dump.cwd.starts_with('/')) return std::nullopt;
        dump.umask = parts[int{'U'}].substr(0, parts[int{'U'}].find('\n'));
        const bool bash = !parts[int{'O'}].empty();
        if (bash) {
          dump.before_variables = parts[int{'P'}] + parts[int{'F'}] + parts[int{'X'}];
          dump.after_variables = parts[int{'A'}] + "umask " + parts[int{'U'}] + "__dsec_last=" + parts[int{'S'}] + "\n" + parts[int{'O'}];
        }
        return dump;
      }
      case 'C':
        dump.cwd = value;
        break;
      case 'E': {
        const std::size_t equals = value.find('=');
        if (equals == std::string_view::npos || !is_variable_name(value.substr(0, equals))) return std::nullopt;
        dump.environment[std::string(value.substr(0, equals))] = value.substr(equals + 1);
        break;
      }
      case 'D':
        if (!parse_assignments("export ", value, dump.environment)) return std::nullopt;
        break;
      case 'W': {
        // As far as it can be read: some shells print more than variables.
        Environment all;
        (void)parse_assignments("", value, all);
        for (auto& [name, text_of] : all)
          if (!dump.environment.contains(name) && is_ordinary(name) && text_of.size() <= kPlainValueLimit) dump.plain[name] = std::move(text_of);
        break;
      }
      case 'V': {
        // "declare -x NAME=…"; nothing for a variable that vanished meanwhile.
        if (value.empty()) break;
        const std::size_t start = value.find(' ', value.find(' ') + 1) + 1;
        const std::string_view name = value.substr(start, std::min(value.find_first_of("=\n", start), value.size()) - start);
        if (start == 0 || !is_variable_name(name)) return std::nullopt;
        dump.declarations[std::string(name)] = value;
        break;
      }
      case 'S':
      case 'U':
        if (!std::all_of(value.begin(), value.end(), [](char c) { return (c >= '0' && c <= '9') || c == '\n'; })) return std::nullopt;
        [[fallthrough]];
      case 'P':
      case 'F':
      case 'X':
      case 'A':
      case 'O':
        parts[int{record[0]}] = value;
        break;
      default:
        return std::nullopt;
    }
  }
  return std::nullopt;
}

Result<ShellSession::Wrapped> ShellSession::wrap(const protocol::ExecStart& request, bool bash) const {
  Wrapped out;
  Program plain = {{"/bin/sh"}, {"sh", "-c", std::string(kShWrapper), "sh", request.shell, umask_}};
  if (!request.clear_env) {
    for (const auto& [name, value] : plain_) {
      const bool given = std::any_of(request.env.begin(), request.env.end(), [&](const std::string& one) { return one.starts_with(name + "="); });
      if (given) continue;  // for this command it is exported
      plain.argv.push_back(name);
      out.environment.push_back({std::string(kPlainValuePrefix) + name, value});
    }
  }
  if (bash) {
    out.programs.push_back({{"/bin/bash"}, {"bash", "-c", bash_wrapper(), "bash", request.shell}});
    std::string script;
    if (!request.clear_env) {
      script = before_variables_;
      for (const auto& [name, declaration] : declarations_) script += declaration;
      script += after_variables_;
      // What is for this command alone comes after what the session remembers.
      for (const std::string& variable : request.env) {
        const std::size_t equals = variable.find('=');
        const std::string name = variable.substr(0, equals);
        if (is_variable_name(name)) script += "export " + name + "=" + shell_quote(std::string_view(variable).substr(equals + 1)) + "\n";
      }
    }
    DSEC_ASSIGN(out.state_in, make_memory_file(script, script.size(), F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE));
  }
  out.programs.push_back(plain);
  out.state_out_number = bash ? kStateOutNumber : kPlainShellStateNumber;
  DSEC_ASSIGN(out.state_out, make_memory_file({}, kShellStateLimit, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW));
  return out;
}

void ShellSession::absorb(const protocol::ExecStart& request, const std::string& start_cwd, int state_out) {
  // The file has its full size from the start; what was not written reads as NUL.
  constexpr std::size_t kStep = 32 << 10;
  constexpr std::string_view kLast("\0Z\0", 3);
  std::string text;
  while (text.size() < kShellStateLimit && text.find(kLast) == std::string::npos) {
    const std::size_t have = text.size();
    text.resize(have + kStep);
    const ssize_t got = ::pread(state_out, text.data() + have, kStep, static_cast<off_t>(have));
    if (got != static_cast<ssize_t>(kStep)) return;
  }
  auto dump = parse_shell_dump(text);
  if (!dump) return;

  if (request.cwd.empty() || dump->cwd != start_cwd) cwd_ = dump->cwd;
  if (!dump->umask.empty()) umask_ = dump->umask;
  if (request.clear_env) return;
  for (const std::string& variable : request.env) {
    const std::size_t equals = variable.find('=');
    const std::string name = variable.substr(0, equals);
    const auto now = dump->environment.find(name);
    if (now == dump->environment.end() || now->second != std::string_view(variable).substr(equals + 1)) continue;
    const auto before = environment_.find(name);
    if (before != environment_.end()) {
      now->second = before->second;
    } else {
      if (const auto plain = plain_.find(name); plain != plain_.end()) dump->plain[name] = plain->second;
      dump->environment.erase(now);
    }
    dump->declarations.erase(name);
    if (const auto declared = declarations_.find(name); declared != declarations_.end()) dump->declarations.insert(*declared);
  }
  environment_ = std::move(dump->environment);
  plain_ = std::move(dump->plain);
  before_variables_ = std::move(dump->before_variables);
  declarations_ = std::move(dump->declarations);
  after_variables_ = std::move(dump->after_variables);
  known_ = true;
}

}  // namespace dsec::agent
