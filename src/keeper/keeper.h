// dsec-keeper: holds by name what must outlive the other programs, and is the
// parent of dsec-spawner and, while it keeps a channel for it, of dsec-stored.
//
// It has a session, a cgroup and a subreaper's place of its own, and does so
// little that it has no reason to die: one thread, one poll loop, no allocation
// that a sandbox could cause. It also holds the spawner's listening socket, so
// that a client's connection waits while a dead spawner is replaced.
#pragma once

#include <chrono>
#include <string>

#include "base/result.h"

namespace dsec::keeper {

struct KeeperOptions {
  std::string data_dir;
  std::string helper_dir;  // where dsec-spawner and dsec-agent are
  bool use_v1 = true;
  std::string ready_slots;  // "" = the spawner's own
  // With no client, no descriptor and no sandbox for this long, it ends.
  std::chrono::milliseconds linger = std::chrono::seconds(15);
};

// Becomes the keeper of a data directory and runs until it has nothing to keep,
// until a stop request (which ends every sandbox) or until SIGTERM (which does
// not). kConflict when it has one already. `ready_fd` gets one byte when both
// sockets listen, then is closed.
Result<void> keep(const KeeperOptions& options, int ready_fd);

}  // namespace dsec::keeper
