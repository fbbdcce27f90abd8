// AgentChannel: the edge's end of one connection to aether.
//
// Event loop only. Reading and writing never block: frames that the socket does
// not take are queued, control before data. The queue is bounded by the windows
// of the protocol: a sender of data waits for acknowledgements.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "protocol/agent_messages.h"
#include "protocol/frame.h"
#include "sys/fd.h"

namespace dsec::edge {

// What the owner of a channel hears. After on_channel_lost nothing more comes.
class AgentEvents {
 public:
  virtual ~AgentEvents() = default;
  virtual void on_hello(const protocol::HelloReply& reply) = 0;
  virtual void on_pong(const protocol::Ping& pong) = 0;
  virtual void on_exec_started(const protocol::ExecStarted& message) = 0;
  virtual void on_exec_failed(const protocol::ExecFailed& message) = 0;
  virtual void on_output(protocol::Output message) = 0;
  virtual void on_exited(const protocol::Exited& message) = 0;
  virtual void on_stdin_ack(const protocol::StdinAck& message) = 0;
  virtual void on_file_reply(protocol::FileReply message) = 0;
  virtual void on_file_data(protocol::FileData message) = 0;
  virtual void on_file_ack(const protocol::FileAck& message) = 0;
  virtual void on_channel_lost(const std::string& why) = 0;
};

class AgentChannel : public std::enable_shared_from_this<AgentChannel> {
 public:
  enum class Lane { kControl, kData };

  // `scratch` is shared by all channels of the loop; used within one call only.
  // `events` stays valid until close() or on_channel_lost().
  AgentChannel(boost::asio::io_context& io, sys::Fd socket, AgentEvents& events, std::string& scratch);
  ~AgentChannel();

  void start();
  // `fd` is borrowed for the call; it travels with the frame's first byte.
  void send(protocol::MessageType type, std::string_view body, int fd = -1, Lane lane = Lane::kControl);
  // In front of the next frame, or with send_held(); what is held is bounded.
  void send_lazily(protocol::MessageType type, std::string_view body);
  void send_held();
  void send_frame(std::string frame, int fd = -1, Lane lane = Lane::kControl);
  bool open() const { return events_ != nullptr; }
  std::size_t queued_bytes() const { return queued_; }
  // No event comes after either. release() gives the open socket away.
  void close();
  sys::Fd release();

 private:
  struct Outgoing {
    std::string bytes;
    std::size_t sent = 0;
    sys::Fd fd;
  };
  void wait_readable();
  void on_readable();
  bool dispatch(const protocol::Frame& frame);
  void flush();
  void lost(const std::string& why);

  boost::asio::posix::stream_descriptor socket_;
  AgentEvents* events_;
  std::string& scratch_;
  protocol::FrameReader reader_;
  std::deque<Outgoing> control_;
  std::deque<Outgoing> data_;
  Outgoing current_;       // partly sent
  std::string held_;       // whole frames
  bool has_current_ = false;
  bool waiting_writable_ = false;
  std::size_t queued_ = 0;
};

}  // namespace dsec::edge
