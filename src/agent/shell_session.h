// A chronus session: what a shell would remember between commands.
//
// No process of the payload lives between two commands, so none can be killed,
// traced or replaced. The state is text: the shell of each command reads it from
// a sealed memfd, and at its end writes the new state into another (see
// shell_session.cc for the form). All of it comes from the payload and is used
// for nothing but the payload's next command.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agent/command_plan.h"
#include "agent/payload_child.h"
#include "base/result.h"
#include "protocol/agent_messages.h"
#include "sys/fd.h"

namespace dsec::agent {

inline constexpr std::size_t kShellStateLimit = 1 << 20;
// Where the shell finds its state and writes it; a shell command never sees them.
inline constexpr int kStateInNumber = 986;
inline constexpr int kStateOutNumber = 987;
inline constexpr int kPlainShellStateNumber = 9;  // sh knows one digit only

// What a shell wrote at its end.
struct ShellDump {
  std::string cwd;
  std::string umask;  // octal
  Environment environment;
  Environment plain;   // sh: variables that are not exported
  // bash, whose next shell reads them in this order:
  std::string before_variables;  // shell options, functions
  Environment declarations;      // NAME -> "declare … NAME=…\n"
  std::string after_variables;   // aliases, umask, "$?", options
};
// Nothing when the text is not whole or not of this form.
std::optional<ShellDump> parse_shell_dump(std::string_view text);

class ShellSession {
 public:
  explicit ShellSession(std::string id) : id_(std::move(id)) {}

  const std::string& id() const { return id_; }
  // Empty until a command has run.
  const std::string& cwd() const { return cwd_; }
  const Environment* environment() const { return known_ ? &environment_ : nullptr; }

  // The shells and their arguments for `request`, what they need in the environment,
  // and the memfds. `bash`: there is one; sh alone keeps directory, umask and
  // variables, but no functions, aliases and options.
  struct Wrapped {
    std::vector<Program> programs;
    std::vector<std::pair<std::string, std::string>> environment;
    sys::Fd state_in;
    sys::Fd state_out;
    int state_out_number = kStateOutNumber;
  };
  Result<Wrapped> wrap(const protocol::ExecStart& request, bool bash) const;

  // Takes the state that the command left, if it left one. cwd and env of the
  // request were for that command alone: what it did not change goes back.
  void absorb(const protocol::ExecStart& request, const std::string& start_cwd, int state_out);

 private:
  std::string id_;
  bool known_ = false;
  std::string cwd_;
  std::string umask_ = "022";
  Environment environment_;
  // See ShellDump; of the last shell.
  Environment plain_;
  std::string before_variables_;
  Environment declarations_;
  std::string after_variables_;
};

// One word of shell: 'it'\''s'.
std::string shell_quote(std::string_view text);

}  // namespace dsec::agent
