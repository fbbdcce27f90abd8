// The least that the engine's benchmark needs of the agent protocol.
#pragma once

#include <optional>
#include <string>

#include "backend/backend.h"
#include "protocol/frame.h"
#include "sys/fd.h"

namespace dsec::bench {

// For LaunchSpec::greeting.
std::string hello_frame();

class Agent {
 public:
  // The stream that the launch has greeted; the answer has come when it returns.
  static std::optional<Agent> meet(backend::Instance& instance, Deadline deadline);
  // Runs `echo hello` in a cgroup of its own until its output and its exit are here.
  bool echo(backend::Instance& instance, Deadline deadline);

 private:
  explicit Agent(sys::Fd stream) : stream_(std::move(stream)) {}
  std::optional<protocol::Frame> next(Deadline deadline);

  sys::Fd stream_;
  protocol::FrameReader frames_;
};

}  // namespace dsec::bench
