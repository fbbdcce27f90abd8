// The least that a contract test needs of the agent protocol: hello and one command.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <optional>
#include <string>

#include "base/clock.h"
#include "protocol/agent_messages.h"
#include "protocol/frame.h"
#include "sys/fd.h"

namespace dsec::contract {

inline std::string hello_frame(const std::string& secret, std::uint64_t epoch) {
  protocol::Hello hello;
  hello.secret = secret;
  hello.epoch = epoch;
  return protocol::encode_frame(protocol::MessageType::kHello, protocol::encode(hello));
}

class AgentProbe {
 public:
  explicit AgentProbe(sys::Fd stream) : stream_(std::move(stream)) {}

  bool hello(const std::string& secret, std::uint64_t epoch) {
    write(hello_frame(secret, epoch));
    return wait_for(protocol::MessageType::kHelloReply).has_value();
  }
  void send(protocol::MessageType type, const std::string& body) { write(protocol::encode_frame(type, body)); }
  void write(const std::string& frame) {
    for (std::size_t sent = 0; sent < frame.size();) {
      const ssize_t put = ::send(stream_.get(), frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL);
      if (put <= 0) return;
      sent += static_cast<std::size_t>(put);
    }
  }
  // The body of the next frame of that type; others are passed over.
  std::optional<std::string> wait_for(protocol::MessageType type, Duration within = std::chrono::seconds(10)) {
    const Deadline deadline = Deadline::in(within);
    for (;;) {
      while (auto frame = reader_.next())
        if (frame->type == type) return frame->body;
      pollfd ready{.fd = stream_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, deadline.left_ms()) <= 0) return std::nullopt;
      char bytes[16 << 10];
      const ssize_t got = ::recv(stream_.get(), bytes, sizeof bytes, 0);
      if (got <= 0) return std::nullopt;
      reader_.feed({bytes, static_cast<std::size_t>(got)});
    }
  }

 private:
  sys::Fd stream_;
  protocol::FrameReader reader_;
};

}  // namespace dsec::contract
