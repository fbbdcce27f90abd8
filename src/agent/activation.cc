#include "agent/activation.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace dsec::agent {

bool await_root(int fd) {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t got = -1;
  do got = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  const cmsghdr* header = got == 1 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(2 * sizeof(int))) return false;
  int received[2];
  std::memcpy(received, CMSG_DATA(header), sizeof received);
  const auto [listener, root] = received;
  if (::fchdir(root) < 0 || ::chroot(".") < 0 || ::dup3(listener, fd, O_CLOEXEC) < 0) return false;
  ::close(listener);
  ::close(root);
  return true;
}

}  // namespace dsec::agent
