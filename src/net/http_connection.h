// What the connections of one server share, and the coroutine of one connection.
//
// Internal to net.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "net/http_server.h"
#include "net/stream_socket.h"

namespace dsec::net {

// Something of a server that holds a socket: a connection, or the WebSocket it became.
class Tracked {
 public:
  virtual ~Tracked() = default;
  virtual void abort() = 0;              // close at once
  virtual void abort_if_waiting() = 0;   // close unless a request is in progress
  virtual void abort_if_late(Instant now) = 0;
};

// Runs on the event loop only.
class ServerState : public std::enable_shared_from_this<ServerState> {
 public:
  ServerState(asio::io_context& io, HttpServer::Options server_options, HttpHandler request_handler)
      : options(std::move(server_options)), handler(std::move(request_handler)), sweep_timer(io), quiet(io) {}

  const HttpServer::Options options;
  const HttpHandler handler;
  asio::steady_timer sweep_timer;  // one for all deadlines: a timer for each read would cost as much as the read
  asio::steady_timer quiet;        // cancelled when the last tracked one goes
  bool draining = false;

  using Place = std::list<Tracked*>::iterator;
  Place add(Tracked* one) { return tracked_.insert(tracked_.end(), one); }
  void remove(Place place) {
    tracked_.erase(place);
    if (tracked_.empty()) quiet.cancel();
  }
  std::size_t count() const { return tracked_.size(); }
  // abort() may remove the one that it is called on, and no other.
  template <typename Action>
  void for_each(Action action) {
    for (auto at = tracked_.begin(); at != tracked_.end();) action(**at++);
  }
  const std::string& date();

 private:
  std::list<Tracked*> tracked_;
  std::int64_t date_second_ = 0;
  std::string date_;
};

asio::awaitable<void> run_connection(std::shared_ptr<ServerState> state, Socket socket, std::string remote_address);

}  // namespace dsec::net
