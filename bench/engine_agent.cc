#include "engine_agent.h"

#include <poll.h>
#include <unistd.h>

#include "protocol/agent_messages.h"
#include "sys/unix_socket.h"

namespace dsec::bench {

using protocol::MessageType;

std::string hello_frame() {
  protocol::Hello hello;
  hello.secret = std::string(32, 's');
  hello.epoch = 1;
  return protocol::encode_frame(MessageType::kHello, protocol::encode(hello));
}

std::optional<Agent> Agent::meet(backend::Instance& instance, Deadline deadline) {
  auto stream = instance.dial_agent(deadline);
  if (!stream.ok()) return std::nullopt;
  Agent agent(std::move(*stream));
  const auto answer = agent.next(deadline);
  if (!answer || answer->type != MessageType::kHelloReply) return std::nullopt;
  return agent;
}

bool Agent::echo(backend::Instance& instance, Deadline deadline) {
  const auto processes = instance.first_operation();
  if (!processes) return false;
  protocol::ExecStart start;
  start.op_id = "echo";
  start.argv = {"echo", "hello"};
  start.with_cgroup = true;
  const std::string frame = protocol::encode_frame(MessageType::kExecStart, protocol::encode(start));
  if (!sys::send_message(stream_.get(), frame, {processes->cgroup_fd()}).ok()) return false;
  std::string printed;
  while (const auto answer = next(deadline)) {
    if (answer->type == MessageType::kOutput) printed += protocol::decode<protocol::Output>(answer->body).value().bytes;
    if (answer->type == MessageType::kExited) return printed == "hello\n" && protocol::decode<protocol::Exited>(answer->body).value().wait_status == 0;
    if (answer->type == MessageType::kExecFailed) return false;
  }
  return false;
}

std::optional<protocol::Frame> Agent::next(Deadline deadline) {
  char buffer[4096];
  for (;;) {
    if (auto frame = frames_.next()) return frame;
    pollfd p{stream_.get(), POLLIN, 0};
    if (::poll(&p, 1, deadline.left_ms()) != 1) return std::nullopt;
    const ssize_t n = ::read(stream_.get(), buffer, sizeof buffer);
    if (n <= 0) return std::nullopt;
    frames_.feed({buffer, static_cast<std::size_t>(n)});
  }
}

}  // namespace dsec::bench
