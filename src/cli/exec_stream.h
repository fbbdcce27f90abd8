// One command over the stream of docs/specs/exec-stream.md, joined to this
// process's standard input, output and error.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <string>

#include "cli/context.h"
#include "cli/terminal.h"

namespace dsec::cli {

struct StreamOptions {
  bool interactive = false;  // standard input goes to the command
  bool tty = false;
  // Ctrl-C: kSignal gives the command the signal, kDetach ends only this client.
  enum class Interrupt { kSignal, kDetach } interrupt = Interrupt::kSignal;
};

struct StreamOutcome {
  int exit_code = kDsecFailed;
  bool detached = false;  // the command runs on
  std::string exec_id;
};

// Starts `exec` (the body of POST …/exec) in the sandbox, follows it to its end.
Result<StreamOutcome> run_stream(Context& context, const std::string& ref, json::object exec, const StreamOptions& options);
// Follows a command that runs already, or has ended; from `offset` of its output on.
Result<StreamOutcome> attach_stream(Context& context, const std::string& ref, const std::string& exec_id, const StreamOptions& options);

// The exit code of `run` and `exec` for a result object: the command's own,
// 128 + n for a signal, 124 for a timeout, 126 and 127 for what could not start.
int exit_code_of(const json::object& result);

}  // namespace dsec::cli
