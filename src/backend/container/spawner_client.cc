#include "backend/container/spawner_client.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <thread>

namespace dsec::backend::container {

namespace {
constexpr std::size_t kIdleConnections = 8;
constexpr Duration kFirstPause = std::chrono::milliseconds(5);
constexpr Duration kLongestPause = std::chrono::milliseconds(100);
}

Result<sys::SocketMessage> SpawnerClient::call(const std::string& bytes, const std::vector<int>& fds, Deadline deadline) {
  sys::Fd connection;
  {
    const std::lock_guard lock(mutex_);
    while (!idle_.empty() && !connection) {
      connection = std::move(idle_.back());
      idle_.pop_back();
      // Nothing is owed to an idle connection: readable means closed.
      pollfd closed{connection.get(), POLLIN, 0};
      if (::poll(&closed, 1, 0) != 0) connection.reset();
    }
  }
  if (!connection) {
    DSEC_ASSIGN(connection, connect(deadline));
  }
  DSEC_TRY(sys::send_message(connection.get(), bytes, fds));
  DSEC_ASSIGN(sys::SocketMessage reply, sys::receive_message(connection.get(), deadline, protocol::kMaxSpawnerMessage));
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kIdleConnections) idle_.push_back(std::move(connection));
  return reply;
}

// While a dead keeper is replaced nobody listens, and nothing tells when somebody does.
Result<sys::Fd> SpawnerClient::connect(Deadline deadline) {
  for (Duration pause = kFirstPause;; pause = std::min<Duration>(pause * 2, kLongestPause)) {
    auto made = sys::connect_unix(path_, SOCK_SEQPACKET);
    if (made.ok() || deadline.passed()) return made;
    const int error = made.error().error_number();
    if (error != ECONNREFUSED && error != ENOENT) return made;
    std::this_thread::sleep_for(std::min(pause, deadline.left()));
  }
}

Result<sys::SocketMessage> SpawnerClient::call_again(const std::string& bytes, Deadline deadline) {
  for (int tries = 0;; ++tries) {
    Result<sys::SocketMessage> reply = call(bytes, {}, deadline);
    if (reply.ok() || tries == 3 || deadline.passed()) return reply;
  }
}

Result<LaunchResult> SpawnerClient::launch(const protocol::LaunchRequest& request, const std::vector<int>& fds, Deadline deadline) {
  const std::string bytes = protocol::encode(request);
  auto message = call(bytes, fds, deadline);
  // Reset: the spawner died before it read the request, so nothing was launched.
  while (!message.ok() && (message.error().error_number() == ECONNRESET || message.error().error_number() == EPIPE) && !deadline.passed())
    message = call(bytes, fds, deadline);
  if (!message.ok()) return Error(ErrorCode::kUnavailable, "spawner: " + message.error().message(), message.error().error_number());
  DSEC_ASSIGN(protocol::LaunchReply reply, protocol::decode_launch_reply(message->bytes));
  LaunchResult out{std::move(reply), {}, {}};
  if (out.reply.launched) {
    if (message->fds.size() != 1) return Error(ErrorCode::kUnavailable, "spawner: a reply without a pidfd");
    out.pidfd = std::move(message->fds[0]);
  }
  return out;
}

Result<bool> SpawnerClient::release(const protocol::ReleaseRequest& request, Deadline deadline) {
  DSEC_ASSIGN(const sys::SocketMessage message, call_again(protocol::encode(request), deadline));
  DSEC_ASSIGN(const protocol::ReleaseReply reply, protocol::decode_release_reply(message.bytes));
  return reply.released;
}

Result<protocol::StatusReply> SpawnerClient::status(Deadline deadline) {
  DSEC_ASSIGN(const sys::SocketMessage message, call_again(protocol::encode_status_request(), deadline));
  return protocol::decode_status_reply(message.bytes);
}

}  // namespace dsec::backend::container
