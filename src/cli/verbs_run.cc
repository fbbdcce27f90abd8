// Commands in sandboxes: run, exec, shell, attach, logs.
#include <unistd.h>

#include <csignal>

#include "cli/exec_stream.h"
#include "cli/units_text.h"
#include "cli/verbs.h"
#include "sys/file.h"

namespace dsec::cli {
namespace {

// What a login shell is, in an image of which nothing is known.
constexpr const char* kShell = "if [ -x /bin/bash ]; then exec /bin/bash -l; else exec /bin/sh -l; fi";

Result<json::object> exec_body(const CommandOptions& options) {
  json::object body;
  if (options.shell) {
    std::string line;
    for (const std::string& part : options.command) line += (line.empty() ? "" : " ") + part;
    body["shell"] = line;
  } else {
    json::array argv;
    for (const std::string& part : options.command) argv.emplace_back(part);
    body["argv"] = argv;
  }
  json::object env;
  for (const std::string& text : options.env) {
    const std::size_t equals = text.find('=');
    if (equals == 0) return invalid_argument("-e \"" + text + "\": the name is missing");
    if (equals != std::string::npos) env[text.substr(0, equals)] = text.substr(equals + 1);
    else if (const char* value = std::getenv(text.c_str())) env[text] = value;
  }
  if (options.tty && !env.contains("TERM")) env["TERM"] = std::getenv("TERM") ? std::getenv("TERM") : "xterm-256color";
  if (!env.empty()) body["env"] = env;
  if (!options.user.empty()) body["user"] = options.user;
  if (!options.workdir.empty()) body["cwd"] = options.workdir;
  if (!options.session.empty()) body["session"] = options.session;
  if (!options.timeout.empty()) {
    DSEC_ASSIGN(const std::int64_t seconds, parse_seconds(options.timeout).within("--timeout"));
    body["timeout_ms"] = seconds * 1000;
  }
  return body;
}

// Without `-t` a vanished client must not leave its command behind unseen.
int follow(Context& context, const std::string& ref, const CommandOptions& options, bool kill_on_disconnect) {
  if (options.tty && !is_terminal(STDIN_FILENO) && options.interactive)
    return fail(invalid_argument("-t needs a terminal as standard input; leave it out, or use -i alone"), kDsecFailed);
  auto body = exec_body(options);
  if (!body.ok()) return fail(body.error(), kDsecFailed);
  if (options.detach) {
    (*body)["background"] = true;
    auto started = context.post(sandbox_target(ref, "/exec"), *body);
    if (!started.ok()) return fail(started.error(), kDsecFailed);
    print(text_at(started->as_object(), "exec_id") + "\n");
    return kOk;
  }
  if (kill_on_disconnect) (*body)["kill_on_disconnect"] = true;
  StreamOptions stream;
  stream.interactive = options.interactive;
  stream.tty = options.tty;
  auto outcome = run_stream(context, ref, std::move(*body), stream);
  if (!outcome.ok()) return fail(outcome.error(), kDsecFailed);
  if (outcome->detached && !outcome->exec_id.empty()) note("dsec: left " + outcome->exec_id + "; `dsec attach " + ref + " " + outcome->exec_id + "` comes back to it");
  return outcome->exit_code;
}

}  // namespace

int run_verb(Context& context, const RunOptions& options) {
  auto spec = sandbox_spec(options.spec);
  if (!spec.ok()) return fail(spec.error(), kDsecFailed);
  if (options.command.command.empty()) return fail(invalid_argument("what is to run? dsec run --image IMAGE -- COMMAND"), kDsecFailed);
  Result<json::object> sandbox = json::object();
  {
    // A Ctrl-C while the sandbox starts waits until there is something to remove.
    auto signals = SignalWatch::watch({SIGINT, SIGTERM});
    sandbox = create_sandbox(context, std::move(spec).value(), options.wait);
    if (sandbox.ok() && signals.ok() && signals->next() != 0) {
      (void)forget_sandbox(context, text_at(*sandbox, "id")).ok();
      return kSignalBase + SIGINT;
    }
  }
  if (!sandbox.ok()) return fail(sandbox.error(), kDsecFailed);
  const std::string id = text_at(*sandbox, "id");
  if (options.command.detach) {
    // The command's end is not waited for: with --rm it is its own start command that would be.
    const int code = follow(context, id, options.command, false);
    if (code == kOk) note("dsec: in sandbox " + id);
    return code;
  }
  const int code = follow(context, id, options.command, options.remove);
  if (options.remove) {
    if (auto removed = forget_sandbox(context, id); !removed.ok() && removed.error().code() != ErrorCode::kNotFound)
      fail(std::move(removed).within("remove " + id).error());
  } else {
    note("dsec: sandbox " + id + " is kept; `dsec rm " + id + "` removes it");
  }
  return code;
}

int exec_verb(Context& context, const std::string& ref, const CommandOptions& options) {
  return follow(context, ref, options, false);
}

int shell_verb(Context& context, const std::string& ref, CommandOptions options) {
  options.interactive = true;
  options.tty = is_terminal(STDIN_FILENO);
  options.shell = true;
  options.command = {kShell};
  return follow(context, ref, options, options.tty);
}

int attach_verb(Context& context, const std::string& ref, const std::string& exec_id, bool interactive) {
  std::string id = exec_id;
  if (id.empty()) {
    auto items = context.pages(sandbox_target(ref, "/exec"));
    if (!items.ok()) return fail(items.error(), kDsecFailed);
    std::size_t running = 0;
    for (const json::value& item : *items)
      if (item.is_object() && text_at(item.get_object(), "state") == "running") {
        id = text_at(item.get_object(), "exec_id");
        ++running;
      }
    if (running != 1)
      return fail(Error(ErrorCode::kNotFound, std::to_string(running) + " commands run in " + ref + ": name one, as `dsec execs " + ref + "` lists them"), kDsecFailed);
  }
  StreamOptions stream;
  stream.interactive = interactive;
  stream.tty = interactive && is_terminal(STDIN_FILENO);
  stream.interrupt = StreamOptions::Interrupt::kDetach;
  auto outcome = attach_stream(context, ref, id, stream);
  if (!outcome.ok()) return fail(outcome.error(), kDsecFailed);
  return outcome->exit_code;
}

int logs_verb(Context& context, const std::string& ref, const std::string& exec_id, bool follow_on) {
  std::vector<std::string> ids;
  if (!exec_id.empty()) {
    ids.push_back(exec_id);
  } else {
    auto items = context.pages(sandbox_target(ref, "/exec"));
    if (!items.ok()) return fail(items.error());
    for (const json::value& item : *items)
      if (item.is_object()) ids.push_back(text_at(item.get_object(), "exec_id"));
  }
  for (const std::string& id : ids) {
    std::int64_t offsets[2] = {0, 0};
    bool ended[2] = {false, false};
    while (!ended[0] || !ended[1]) {
      bool progress = false;
      for (const int which : {0, 1}) {
        if (ended[which]) continue;
        HttpCall call;
        // Alternating short waits: one connection serves both streams.
        call.target = sandbox_target(ref, "/exec/" + percent_encode(id) + "/output") + "?stream=" + (which == 0 ? "stdout" : "stderr") +
                      "&offset=" + std::to_string(offsets[which]) + "&wait_ms=" + (follow_on ? "500" : "0");
        const int target = which == 0 ? STDOUT_FILENO : STDERR_FILENO;
        std::int64_t taken = 0;
        auto answer = context.raw(call, [target, &taken](std::string_view part) -> Result<void> {
          taken += static_cast<std::int64_t>(part.size());
          return sys::write_all(target, part);
        });
        if (!answer.ok()) return answer.error().error_number() == EPIPE ? kOk : fail(answer.error());
        const std::string* start = answer->header("X-Dsec-Offset");
        const std::int64_t begin = start ? std::atoll(start->c_str()) : offsets[which];
        if (begin > offsets[which]) note("dsec: " + std::to_string(begin - offsets[which]) + " bytes are no longer held");
        offsets[which] = begin + taken;
        const std::string* end = answer->header("X-Dsec-End");
        ended[which] = end && *end == "true";
        progress = progress || taken > 0;
      }
      if (!follow_on && !progress) break;
    }
  }
  return kOk;
}

}  // namespace dsec::cli
