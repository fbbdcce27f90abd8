// File requests of the edge, each served by a worker process; aether only relays.
//
// Nothing is read from a worker before it can be sent on, and nothing is taken
// from the edge beyond a window: so neither a large file nor a stuck reader holds
// memory or delays other requests.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>

#include "agent/event_loop.h"
#include "agent/file_worker.h"
#include "protocol/frame.h"

namespace dsec::agent {

class FileService {
 public:
  struct Peer {
    std::function<void(protocol::MessageType, std::string_view body)> send;
    std::function<void()> data_ready;
    std::function<void()> forget_secrets;  // in a worker's process
  };

  FileService(EventLoop& loop, Standing standing, Peer peer) : loop_(loop), standing_(standing), peer_(std::move(peer)) {}
  ~FileService() { drop_all(); }
  FileService(const FileService&) = delete;
  FileService& operator=(const FileService&) = delete;

  void request(protocol::FileRequest request);
  void take_data(protocol::FileData data);
  void acknowledge(const protocol::FileAck& ack);
  void cancel(std::uint64_t request_id);
  // The connection that asked is gone.
  void drop_all();

  // The next whole frame (FileData or FileReply), the requests taking turns.
  std::string next_data();

 private:
  struct Job {
    protocol::FileRequest request;
    FileWorker worker;  // invalid while it waits for a slot
    bool in_turn = false;
    std::uint64_t sent = 0;  // FileData to the edge
    std::uint64_t acknowledged = 0;
    std::deque<std::string> upload;  // messages for the worker
    std::size_t upload_bytes = 0;
    std::uint64_t received = 0;
    std::uint64_t delivered = 0;
    bool is_watch() const { return request.verb == protocol::FileVerb::kWatch; }
    bool window_open() const { return sent - acknowledged < protocol::kOutputWindow; }
  };

  void start_next();
  void start(Job& job);
  void on_event(std::uint64_t id);
  void put_in_turn(std::uint64_t id, Job& job);
  void flush_upload(Job& job);
  void update_interest(Job& job);
  void finish(std::uint64_t id, int error_number, std::string message);
  void remove(std::uint64_t id);

  EventLoop& loop_;
  const Standing standing_;
  Peer peer_;
  std::map<std::uint64_t, Job> jobs_;
  std::deque<std::uint64_t> waiting_;
  std::deque<std::uint64_t> turns_;
  std::size_t workers_ = 0;
  std::size_t watches_ = 0;
};

}  // namespace dsec::agent
