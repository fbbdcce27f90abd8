// Answers requests of protocol/spawner_messages.h until told to stop.
#pragma once

#include <string>

#include "base/result.h"
#include "sys/cgroup.h"
#include "sys/fd.h"

namespace dsec::spawner {

struct ServerOptions {
  std::string agent_path;
  std::string cgroup_name;
  bool use_v1 = true;
  std::size_t ready_slots = 32;
  bool reuse_slots = true;
};

// Takes over the process: leaves the host's mount tree, ignores SIGCHLD. `listener`
// is a listening SOCK_SEQPACKET socket; the call returns after SIGTERM or SIGINT.
// Sandboxes that run then run on.
Result<void> serve(const ServerOptions& options, sys::Fd listener);

}  // namespace dsec::spawner
