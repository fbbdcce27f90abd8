// dsec-spawner: makes sandboxes for one data directory. Started by dsec-keeper.
//
//   dsec-spawner --socket-fd N --agent FILE --cgroup NAME [--keeper PID] [--no-v1] [--ready N] [--no-reuse]
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/log.h"
#include "spawner/server.h"
#include "sys/process.h"

int main(int argc, char** argv) {
  dsec::set_up_log("dsec-spawner", dsec::LogLevel::kInfo, dsec::LogFormat::kText);
  // An ignored signal outlives every exec. A server that a script has put into
  // the background ignores SIGINT and SIGQUIT; no sandbox may inherit that.
  dsec::sys::reset_signals();
  // A keeper that is gone starts another spawner when it is back.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  dsec::spawner::ServerOptions options;
  int listener = -1;
  pid_t keeper = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--no-v1") options.use_v1 = false;
    else if (flag == "--no-reuse") options.reuse_slots = false;
    else if (flag == "--socket-fd") listener = std::atoi(value), ++i;
    else if (flag == "--keeper") keeper = std::atoi(value), ++i;
    else if (flag == "--agent") options.agent_path = value, ++i;
    else if (flag == "--cgroup") options.cgroup_name = value, ++i;
    else if (flag == "--ready") options.ready_slots = static_cast<std::size_t>(std::atoi(value)), ++i;
    else return std::fprintf(stderr, "dsec-spawner: unknown argument %s\n", argv[i]), 2;
  }
  if (listener < 0 || options.agent_path.empty() || options.cgroup_name.empty())
    return std::fprintf(stderr, "usage: dsec-spawner --socket-fd N --agent FILE --cgroup NAME [--keeper PID] [--no-v1] [--ready N] [--no-reuse]\n"), 2;
  // It died before the signal was asked for.
  if (keeper != 0 && ::getppid() != keeper) return 0;
  const auto served = dsec::spawner::serve(options, dsec::sys::Fd(listener));
  if (!served.ok()) return dsec::log_error("spawner ended", {{"error", served.error().message()}}), 1;
  return 0;
}
