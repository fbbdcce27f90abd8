#include "agent/worker_channel.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

namespace dsec::agent {

void WorkerChannel::send_message(char kind, std::string_view content) {
  iovec parts[2] = {{&kind, 1}, {const_cast<char*>(content.data()), content.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  while (::sendmsg(socket_, &message, MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) ::_exit(1);
  }
}

void WorkerChannel::reply(protocol::FileReply reply) {
  reply.request_id = request_id_;
  send_message(kWorkerReply, protocol::encode(reply));
}

void WorkerChannel::finish(int error_number, std::string message) {
  reply({.error_number = error_number, .message = std::move(message)});
}

void WorkerChannel::send_data(std::string_view bytes) {
  while (!bytes.empty()) {
    send_message(kWorkerData, bytes.substr(0, protocol::kDataChunk));
    bytes.remove_prefix(std::min(bytes.size(), protocol::kDataChunk));
  }
}

void WorkerChannel::end_data() { send_message(kWorkerEnd, {}); }

std::string WorkerChannel::receive_data() {
  if (ended_) return {};
  std::string message(protocol::kMaxFrameBody + 1, '\0');
  for (;;) {
    const ssize_t got = ::recv(socket_, message.data(), message.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) ::_exit(1);
    if (message[0] == kWorkerEnd) {
      ended_ = true;
      return {};
    }
    if (got == 1) continue;
    message.resize(static_cast<std::size_t>(got));
    message.erase(0, 1);
    return message;
  }
}

}  // namespace dsec::agent
