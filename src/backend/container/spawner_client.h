// Connections to dsec-spawner.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "protocol/spawner_messages.h"
#include "sys/fd.h"
#include "sys/unix_socket.h"

namespace dsec::backend::container {

struct LaunchResult {
  protocol::LaunchReply reply;
  sys::Fd pidfd;
  sys::Fd greeted;  // the first stream to the agent, where one was asked for
};

// Safe on any thread: each call has a connection of its own meanwhile. The
// keeper holds the listening socket, so while a dead spawner is replaced a new
// connection waits instead of failing; while a dead keeper is, a call tries again
// until its deadline.
class SpawnerClient {
 public:
  explicit SpawnerClient(std::string socket_path) : path_(std::move(socket_path)) {}

  // kUnavailable when the spawner died meanwhile: it is not known then whether
  // the sandbox runs.
  Result<LaunchResult> launch(const protocol::LaunchRequest& request, const std::vector<int>& fds, Deadline deadline);
  Result<bool> release(const protocol::ReleaseRequest& request, Deadline deadline);
  Result<protocol::StatusReply> status(Deadline deadline);

 private:
  Result<sys::SocketMessage> call(const std::string& bytes, const std::vector<int>& fds, Deadline deadline);
  Result<sys::Fd> connect(Deadline deadline);
  // For what may be done twice.
  Result<sys::SocketMessage> call_again(const std::string& bytes, Deadline deadline);

  const std::string path_;
  std::mutex mutex_;  // guards idle_
  std::vector<sys::Fd> idle_;
};

}  // namespace dsec::backend::container
