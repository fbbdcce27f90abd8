#include "backend/container/spawner_client.h"

#include <poll.h>
#include <sys/socket.h>

namespace dsec::backend::container {

namespace {
constexpr std::size_t kIdleConnections = 8;
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
    DSEC_ASSIGN(connection, sys::connect_unix(path_, SOCK_SEQPACKET));
  }
  DSEC_TRY(sys::send_message(connection.get(), bytes, fds));
  DSEC_ASSIGN(sys::SocketMessage reply, sys::receive_message(connection.get(), deadline, protocol::kMaxSpawnerMessage));
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kIdleConnections) idle_.push_back(std::move(connection));
  return reply;
}

Result<sys::SocketMessage> SpawnerClient::call_again(const std::string& bytes, Deadline deadline) {
  for (int tries = 0;; ++tries) {
    Result<sys::SocketMessage> reply = call(bytes, {}, deadline);
    if (reply.ok() || tries == 3 || deadline.passed()) return reply;
  }
}

Result<LaunchResult> SpawnerClient::launch(const protocol::LaunchRequest& request, const std::vector<int>& fds, Deadline deadline) {
  auto message = call(protocol::encode(request), fds, deadline);
  if (!message.ok()) return Error(ErrorCode::kUnavailable, "spawner: " + message.error().message(), message.error().error_number());
  DSEC_ASSIGN(protocol::LaunchReply reply, protocol::decode_launch_reply(message->bytes));
  LaunchResult out{std::move(reply), {}};
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
