#include "sys/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace dsec::sys {
namespace {

constexpr std::size_t kMaxDescriptors = 200;

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return invalid_argument("the socket path is longer than 107 bytes: " + path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

}  // namespace

Result<SocketPair> socket_pair(int type) {
  int fds[2];
  if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds) != 0) return errno_error("make a socket pair", errno);
  return SocketPair{Fd(fds[0]), Fd(fds[1])};
}

Result<Fd> listen_unix(const std::string& path, int type, int backlog) {
  DSEC_ASSIGN(const sockaddr_un address, address_of(path));
  Fd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!fd) return errno_error("make a unix socket", errno);
  // The mode is set on the socket before it has a name, which takes it over: no
  // moment at which others may connect.
  if (::fchmod(fd.get(), 0600) != 0) return errno_error("set the mode of " + path, errno);
  const auto bound = [&] { return ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0; };
  if (!bound() && (errno != EADDRINUSE || ::unlink(path.c_str()) != 0 || !bound())) return errno_error("bind " + path, errno);
  if (::listen(fd.get(), backlog) != 0) return errno_error("listen on " + path, errno);
  return fd;
}

Result<Fd> connect_unix(const std::string& path, int type) {
  DSEC_ASSIGN(const sockaddr_un address, address_of(path));
  Fd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!fd) return errno_error("make a unix socket", errno);
  int rc;
  do {
    rc = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } while (rc != 0 && errno == EINTR);
  if (rc != 0) return errno_error("connect to " + path, errno);
  return fd;
}

Result<Fd> accept_unix(int listener) {
  int fd;
  do {
    fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return errno_error("accept", errno);
  return Fd(fd);
}

Result<void> send_message(int socket, std::string_view bytes, const std::vector<int>& fds) {
  if (fds.size() > kMaxDescriptors) return invalid_argument("too many descriptors for one message");
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  std::vector<char> control;
  if (!fds.empty()) {
    control.resize(CMSG_SPACE(fds.size() * sizeof(int)));
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  ssize_t n;
  do {
    n = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return errno_error("send", errno);
  if (static_cast<std::size_t>(n) != bytes.size()) return Error(ErrorCode::kUnavailable, "short send");
  return {};
}

Result<void> wait_readable(int fd, Deadline deadline) {
  for (;;) {
    pollfd p{fd, POLLIN, 0};
    const int n = ::poll(&p, 1, deadline.left_ms());
    if (n > 0) return {};
    if (n < 0 && errno != EINTR) return errno_error("poll", errno);
    if (deadline.passed()) return Error(ErrorCode::kDeadlineExceeded, "no answer by the deadline");
  }
}

Result<SocketMessage> receive_message(int socket, Deadline deadline, std::size_t limit) {
  DSEC_TRY(wait_readable(socket, deadline));
  SocketMessage out;
  // Kept and never cleared: clearing 200 KiB costs more than the message.
  thread_local std::unique_ptr<char[]> buffer;
  thread_local std::size_t buffer_size = 0;
  if (buffer_size < limit) {
    buffer = std::make_unique_for_overwrite<char[]>(limit);
    buffer_size = limit;
  }
  iovec part{buffer.get(), limit};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n;
  do {
    n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return errno_error("receive", errno);
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; i++) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      out.fds.emplace_back(fd);
    }
  }
  if (n == 0) return Error(ErrorCode::kUnavailable, "the peer closed the connection");
  if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) return Error(ErrorCode::kTooLarge, "a message was cut");
  out.bytes.assign(buffer.get(), static_cast<std::size_t>(n));
  return out;
}

}  // namespace dsec::sys
