// dsec-stored: serves the data of layers on demand. Started by dsec-keeper.
//
//   dsec-stored --data-dir DIR --keeper PID --channel-fd N
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/log.h"
#include "origin/late_origin.h"
#include "origin/open_origin.h"
#include "stored/open_peers.h"
#include "stored/server.h"
#include "sys/process.h"

namespace {

dsec::Result<void> run(const std::string& data_dir, dsec::sys::Fd channel) {
  DSEC_ASSIGN(const dsec::stored::Config config, dsec::stored::load_config(data_dir));
  dsec::origin::LateOrigin store(config.store_url, [&](dsec::Deadline deadline) { return dsec::origin::open_origin(config.store_url, deadline); });
  dsec::stored::ServerOptions options;
  options.folders = dsec::stored::folders_of(data_dir);
  options.cache_bytes = config.cache_bytes;
  options.traces = config.traces;
  const auto peers = dsec::stored::open_peers(config, store, options);
  return dsec::stored::serve(options, std::move(channel), peers ? *peers : static_cast<dsec::origin::Origin&>(store));
}

}  // namespace

int main(int argc, char** argv) {
  dsec::set_up_log("dsec-stored", dsec::LogLevel::kInfo, dsec::LogFormat::kText);
  dsec::sys::reset_signals();
  // A keeper that is gone starts another one when it is back.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string data_dir;
  int channel = -1;
  pid_t keeper = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--data-dir") data_dir = argv[i + 1];
    else if (flag == "--keeper") keeper = std::atoi(argv[i + 1]);
    else if (flag == "--channel-fd") channel = std::atoi(argv[i + 1]);
    else return std::fprintf(stderr, "dsec-stored: unknown argument %s\n", argv[i]), 2;
  }
  if (channel < 0 || data_dir.empty()) return std::fprintf(stderr, "usage: dsec-stored --data-dir DIR --keeper PID --channel-fd N\n"), 2;
  if (keeper != 0 && ::getppid() != keeper) return 0;  // it died before the signal was asked for
  const auto served = run(data_dir, dsec::sys::Fd(channel));
  if (!served.ok()) return dsec::log_error("dsec-stored ended", {{"error", served.error().message()}}), 1;
  return 0;
}
