#include "agent/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace dsec::agent {
namespace {

constexpr std::size_t kReadBytes = 16 << 10;
constexpr std::size_t kControlLimit = 1 << 20;   // beyond it nothing more is read
constexpr std::size_t kWriteTurn = 512 << 10;    // then other events have their turn
constexpr std::size_t kGather = 4 << 10;         // small frames leave in one call: the edge wakes once for them
constexpr std::size_t kDescriptorLimit = 64;

}  // namespace

Connection::Connection(EventLoop& loop, sys::Fd socket) : loop_(loop), socket_(std::move(socket)) {}

Connection::~Connection() {
  *alive_ = false;
  if (socket_.valid()) loop_.forget(socket_.get());
}

bool Connection::start(Events events) {
  events_ = std::move(events);
  return loop_.watch(socket_.get(), EPOLLIN, [this](std::uint32_t what) { on_event(what); });
}

void Connection::read_now() { on_event(EPOLLIN); }

void Connection::send(protocol::MessageType type, std::string_view body) {
  if (closed()) return;
  control_.push_back(protocol::encode_frame(type, body));
  control_bytes_ += control_.back().size();
  data_ready();
}

// Written after the events in hand: what they produce leaves together.
void Connection::data_ready() {
  data_wanted_ = true;
  if (flush_planned_ || closed()) return;
  flush_planned_ = true;
  loop_.later([this, alive = alive_] {
    if (!*alive) return;
    flush_planned_ = false;
    if (closed()) return;
    if (!write_some()) return fail();
    update_interest();
  });
}

sys::Fd Connection::take_descriptor() {
  if (descriptors_.empty()) return {};
  sys::Fd fd = std::move(descriptors_.front());
  descriptors_.pop_front();
  return fd;
}

void Connection::close_after_sending() {
  if (closed()) return;
  events_.next_data = nullptr;
  (void)write_some();
  loop_.forget(socket_.get());
  socket_.reset();
}

void Connection::fail() {
  if (closed()) return;
  loop_.forget(socket_.get());
  socket_.reset();
  if (events_.closed) {
    const auto closed_event = events_.closed;
    closed_event();
  }
}

void Connection::on_event(std::uint32_t events) {
  const auto alive = alive_;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && control_bytes_ < kControlLimit && !read_some()) {
    if (*alive) fail();
    return;
  }
  if (!*alive || closed()) return;
  if ((events & (EPOLLHUP | EPOLLERR)) != 0 && control_bytes_ >= kControlLimit) return fail();
  if ((events & EPOLLOUT) != 0 && !write_some()) return fail();
  update_interest();
}

void Connection::update_interest() {
  if (closed() || flush_planned_) return;  // a flush looks again
  std::uint32_t interest = control_bytes_ < kControlLimit ? EPOLLIN : 0u;
  if (!sending_.empty() || !control_.empty() || data_wanted_) interest |= EPOLLOUT;
  loop_.change(socket_.get(), interest);
}

// False when the connection is over, or when `this` is no more.
bool Connection::read_some() {
  const auto alive = alive_;
  char bytes[kReadBytes];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 16)];
  iovec part{bytes, sizeof bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(at) + i * sizeof fd, sizeof fd);
      descriptors_.emplace_back(fd);
    }
  }
  if (got == 0 || descriptors_.size() > kDescriptorLimit) return false;

  reader_.feed({bytes, static_cast<std::size_t>(got)});
  while (auto frame = reader_.next()) {
    const auto take = events_.frame;  // the events may be replaced meanwhile
    take(std::move(*frame));
    if (!*alive || closed()) return *alive;
  }
  return true;
}

// The frame whose turn it is, "" when none can be had.
std::string Connection::next_frame(bool data_too) {
  if (control_.empty() && data_too && events_.next_data) {
    std::string frame = events_.next_data();
    if (frame.empty()) data_wanted_ = false;
    if (!frame.empty() || control_.empty()) return frame;
  }
  if (control_.empty()) return {};
  std::string frame = std::move(control_.front());
  control_bytes_ -= frame.size();
  control_.pop_front();
  return frame;
}

bool Connection::write_some() {
  std::size_t turn = 0;
  for (;;) {
    while (sending_.size() < kGather) {
      std::string frame = next_frame(turn < kWriteTurn);
      if (frame.empty()) break;
      if (sending_.empty()) sending_ = std::move(frame);
      else sending_ += frame;
    }
    if (sending_.empty()) return true;
    const ssize_t put = ::send(socket_.get(), sending_.data() + sent_, sending_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put < 0) return errno == EAGAIN || errno == EINTR;
    sent_ += static_cast<std::size_t>(put);
    turn += static_cast<std::size_t>(put);
    if (sent_ < sending_.size()) continue;
    sending_ = {};
    sent_ = 0;
  }
}

}  // namespace dsec::agent
