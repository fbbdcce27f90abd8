// One connection to the edge: frames in, frames out, descriptors in.
//
// Control frames leave before data. Data is not queued here: while the socket
// takes bytes and no control frame waits, the source is asked for the next one.
// So a peer that does not read stops the sources, and memory stays bounded.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/event_loop.h"
#include "protocol/frame.h"
#include "sys/fd.h"

namespace dsec::agent {

class Connection {
 public:
  struct Events {
    std::function<void(protocol::Frame)> frame;
    std::function<std::string()> next_data;  // a whole frame, "" when there is none
    std::function<void()> closed;            // may destroy the Connection
  };

  Connection(EventLoop& loop, sys::Fd socket);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // False when the loop cannot take it.
  bool start(Events events);
  // From the next frame on.
  void set_events(Events events) { events_ = std::move(events); }
  // What has come already is read without a turn of the loop.
  void read_now();
  void send(protocol::MessageType type, std::string_view body);
  // Data may be had from the source again.
  void data_ready();
  // The oldest descriptor that came and that no frame has claimed.
  sys::Fd take_descriptor();
  // Sends what waits if the socket takes it now, then closes; no event follows.
  void close_after_sending();
  bool closed() const { return !socket_.valid(); }

 private:
  void on_event(std::uint32_t events);
  bool read_some();
  std::string next_frame(bool data_too);
  bool write_some();
  void update_interest();
  void fail();

  EventLoop& loop_;
  sys::Fd socket_;
  Events events_;
  protocol::FrameReader reader_{protocol::kMaxExecStartBody};
  std::deque<sys::Fd> descriptors_;
  std::deque<std::string> control_;
  std::size_t control_bytes_ = 0;
  std::string sending_;  // whole frames, of which sent_ bytes have left
  std::size_t sent_ = 0;
  bool data_wanted_ = false;  // the source may have a frame
  bool flush_planned_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dsec::agent
