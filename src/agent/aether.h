// aether: init and reaper of a sandbox, and the edge's hand in it.
//
// One thread, one loop. It holds the listening socket, one connection that has
// proved the secret, the commands and the file requests. It executes nothing and
// reads no configuration of the sandbox for work of its own; what the payload
// can reach (signals, files, output) ends as data or as an error here.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "agent/commands.h"
#include "agent/connection.h"
#include "agent/event_loop.h"
#include "agent/file_service.h"

namespace dsec::agent {

class Aether {
 public:
  struct Options {
    int listener = 3;
    bool plain = false;  // an ordinary process: no namespaces, no cgroups; SIGTERM ends it
    Standing standing;
  };

  explicit Aether(Options options);
  Aether(const Aether&) = delete;
  Aether& operator=(const Aether&) = delete;

  // Until Shutdown, or in --plain SIGTERM. The exit status.
  int run();

 private:
  struct Guest {  // a connection that has not said Hello
    std::unique_ptr<Connection> connection;
    EventLoop::TimerId patience = 0;
  };

  static Commands::Settings settings_of(const Options& options);
  void watch_children();
  void reap();
  void on_connect();
  void on_guest_frame(std::uint64_t guest, const protocol::Frame& frame);
  void drop_guest(std::uint64_t guest);
  void welcome(std::unique_ptr<Connection> connection, const protocol::Hello& hello);
  void send_hello_reply(std::uint32_t version);
  void on_frame(const protocol::Frame& frame);
  template <typename Message, typename Action>
  void with(const protocol::Frame& frame, Action action);
  std::string next_data();
  void protocol_error(std::string message);
  void bury(std::unique_ptr<Connection> connection);
  void shut_down();

  const Options options_;
  EventLoop loop_;
  sys::Fd listener_;
  sys::Fd child_signals_;
  std::unique_ptr<Connection> edge_;
  Commands commands_;
  FileService files_;
  bool files_turn_ = false;

  std::uint64_t next_guest_ = 1;
  std::map<std::uint64_t, Guest> guests_;
  EventLoop::TimerId tidy_ = 0;
  bool paired_ = false;  // the first Hello has come
  std::string secret_;
  std::uint64_t epoch_ = 0;
};

}  // namespace dsec::agent
