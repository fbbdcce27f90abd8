// From an ExecStart to what a payload process needs: environment, candidates for
// the program, working directory. Pure, so that it can be tested without one.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "agent/accounts.h"
#include "agent/payload_child.h"
#include "base/result.h"
#include "protocol/agent_messages.h"

namespace dsec::agent {

inline constexpr std::string_view kDefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

// NAME -> value, in the order of names.
using Environment = std::map<std::string, std::string, std::less<>>;

// kInvalidArgument: neither or both of argv and shell, an empty argv[0], a NUL in
// any text, a variable without "=" or name, an id that is empty or too long.
Result<void> check_exec_start(const protocol::ExecStart& request);

// Session variables stand in for the defaults; the request's come last.
Environment make_environment(const protocol::ExecStart& request, const Account& account, const Environment* session);
std::vector<std::string> to_strings(const Environment& environment);

// The files that argv[0] may name: itself when it holds a slash, else one for each
// directory of PATH.
std::vector<std::string> candidates(const std::string& name, const Environment& environment);

// A relative cwd is taken from `base`.
std::string join_path(std::string_view base, std::string_view path);

}  // namespace dsec::agent
