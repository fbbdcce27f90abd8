#include "edge/agent_channel.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errno_text.h"
#include "sys/file.h"

namespace dsec::edge {
namespace {

namespace asio = boost::asio;
using protocol::MessageType;

constexpr std::size_t kMostHeld = 4 << 10;

// One sendmsg; the number of bytes taken, or -errno.
ssize_t send_some(int socket, std::string_view bytes, int fd) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  if (fd >= 0) {
    std::memset(control, 0, sizeof control);
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  ssize_t n;
  do n = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  return n < 0 ? -errno : n;
}

}  // namespace

AgentChannel::AgentChannel(asio::io_context& io, sys::Fd socket, AgentEvents& events, std::string& scratch)
    : socket_(io, socket.release()), events_(&events), scratch_(scratch) {
  boost::system::error_code ignored;
  socket_.non_blocking(true, ignored);
  if (scratch_.size() < protocol::kMaxFrameBody) scratch_.resize(protocol::kMaxFrameBody);
}

AgentChannel::~AgentChannel() = default;

void AgentChannel::start() { wait_readable(); }

void AgentChannel::wait_readable() {
  socket_.async_wait(asio::posix::stream_descriptor::wait_read,
                     [self = shared_from_this()](boost::system::error_code failed) {
                       if (!self->open()) return;
                       if (failed) return self->lost(failed.message());
                       self->on_readable();
                     });
}

void AgentChannel::on_readable() {
  // A bounded number of turns, so that one busy sandbox leaves the loop to others.
  const std::shared_ptr<AgentChannel> self = shared_from_this();
  for (int turn = 0; turn < 4; ++turn) {
    const ssize_t n = ::recv(socket_.native_handle(), scratch_.data(), scratch_.size(), MSG_DONTWAIT);
    if (n == 0) return lost("the agent closed the channel");
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) break;
      return lost("read: " + errno_text(errno));
    }
    reader_.feed(std::string_view(scratch_.data(), static_cast<std::size_t>(n)));
    while (const auto frame = reader_.next()) {
      if (!dispatch(*frame)) return lost("the agent sent a message that cannot be read");
      if (!open()) return;
    }
    if (static_cast<std::size_t>(n) < scratch_.size()) break;
  }
  wait_readable();
}

bool AgentChannel::dispatch(const protocol::Frame& frame) {
  const auto pass = [&]<typename Message>(auto deliver, Message*) {
    Result<Message> message = protocol::decode<Message>(frame.body);
    if (!message.ok()) return false;
    (events_->*deliver)(std::move(message).value());
    return true;
  };
  switch (frame.type) {
    case MessageType::kHelloReply: return pass(&AgentEvents::on_hello, static_cast<protocol::HelloReply*>(nullptr));
    case MessageType::kPong: return pass(&AgentEvents::on_pong, static_cast<protocol::Ping*>(nullptr));
    case MessageType::kExecStarted: return pass(&AgentEvents::on_exec_started, static_cast<protocol::ExecStarted*>(nullptr));
    case MessageType::kExecFailed: return pass(&AgentEvents::on_exec_failed, static_cast<protocol::ExecFailed*>(nullptr));
    case MessageType::kOutput: return pass(&AgentEvents::on_output, static_cast<protocol::Output*>(nullptr));
    case MessageType::kExited: return pass(&AgentEvents::on_exited, static_cast<protocol::Exited*>(nullptr));
    case MessageType::kStdinAck: return pass(&AgentEvents::on_stdin_ack, static_cast<protocol::StdinAck*>(nullptr));
    case MessageType::kFileReply: return pass(&AgentEvents::on_file_reply, static_cast<protocol::FileReply*>(nullptr));
    case MessageType::kFileData: return pass(&AgentEvents::on_file_data, static_cast<protocol::FileData*>(nullptr));
    case MessageType::kFileAck: return pass(&AgentEvents::on_file_ack, static_cast<protocol::FileAck*>(nullptr));
    case MessageType::kProtocolError: {
      const Result<protocol::ProtocolError> error = protocol::decode<protocol::ProtocolError>(frame.body);
      lost("the agent refused: " + (error.ok() ? error->message : std::string("?")));
      return true;
    }
    default: return true;  // a newer agent's message: not for this version
  }
}

void AgentChannel::send(MessageType type, std::string_view body, int fd, Lane lane) {
  if (open()) send_frame(protocol::encode_frame(type, body), fd, lane);
}

void AgentChannel::send_lazily(MessageType type, std::string_view body) {
  if (!open()) return;
  held_ += protocol::encode_frame(type, body);
  if (held_.size() >= kMostHeld) send_held();
}

void AgentChannel::send_held() {
  if (!held_.empty()) send_frame({});
}

void AgentChannel::send_frame(std::string bytes, int fd, Lane lane) {
  if (!open()) return;
  if (!held_.empty()) bytes.insert(0, std::exchange(held_, {}));
  Outgoing frame{.bytes = std::move(bytes)};
  const bool idle = !has_current_ && control_.empty() && data_.empty();
  if (idle && !waiting_writable_) {
    const ssize_t n = send_some(socket_.native_handle(), frame.bytes, fd);
    if (n == static_cast<ssize_t>(frame.bytes.size())) return;
    if (n > 0) {
      frame.sent = static_cast<std::size_t>(n);
      fd = -1;
    } else if (n != -EAGAIN && n != -ENOBUFS) {
      // Told to the owner by the reading side, never from inside its own call.
      return;
    }
  }
  if (fd >= 0) {
    Result<sys::Fd> copy = sys::duplicate(fd);
    if (!copy.ok()) return;
    frame.fd = std::move(copy).value();
  }
  queued_ += frame.bytes.size();
  if (frame.sent > 0) {
    current_ = std::move(frame);
    has_current_ = true;
  } else {
    (lane == Lane::kControl ? control_ : data_).push_back(std::move(frame));
  }
  flush();
}

void AgentChannel::flush() {
  while (open() && !waiting_writable_) {
    if (!has_current_) {
      std::deque<Outgoing>& queue = control_.empty() ? data_ : control_;
      if (queue.empty()) return;
      current_ = std::move(queue.front());
      queue.pop_front();
      has_current_ = true;
    }
    const std::string_view left = std::string_view(current_.bytes).substr(current_.sent);
    const ssize_t n = send_some(socket_.native_handle(), left, current_.fd.get());
    if (n > 0) {
      current_.sent += static_cast<std::size_t>(n);
      current_.fd.reset();
      if (current_.sent < current_.bytes.size()) continue;
      queued_ -= current_.bytes.size();
      has_current_ = false;
      continue;
    }
    if (n != -EAGAIN && n != -ENOBUFS) return;  // the reading side hears of it
    waiting_writable_ = true;
    socket_.async_wait(asio::posix::stream_descriptor::wait_write,
                       [self = shared_from_this()](boost::system::error_code failed) {
                         self->waiting_writable_ = false;
                         if (!failed) self->flush();
                       });
  }
}

void AgentChannel::lost(const std::string& why) {
  AgentEvents* events = events_;
  close();
  if (events != nullptr) events->on_channel_lost(why);
}

void AgentChannel::close() { release().reset(); }

sys::Fd AgentChannel::release() {
  if (events_ == nullptr) return {};
  events_ = nullptr;
  control_.clear();
  data_.clear();
  held_.clear();
  return sys::Fd(socket_.release());
}

}  // namespace dsec::edge
