#include "registry_dial.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "edge/egress_policy.h"

namespace dsec {

namespace {

edge::IpAddress address_of(const sockaddr& address) {
  edge::IpAddress out;
  if (address.sa_family == AF_INET6) {
    std::memcpy(out.bytes.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, 16);
  } else {
    out.bytes[10] = out.bytes[11] = 0xFF;
    std::memcpy(out.bytes.data() + 12, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, 4);
  }
  return out;
}

bool may_dial(const image::AllowedRegistry& host, const sockaddr& address) {
  if (host.is_literal() || host.host == "localhost") return true;
  const std::optional<std::string> special = edge::special_kind(address_of(address));
  return !special || *special == "private";
}

Result<sys::Fd> connect_to(const addrinfo& to, Deadline by) {
  sys::Fd socket(::socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return errno_error("make a socket", errno);
  if (::connect(socket.get(), to.ai_addr, to.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno_error("connect", errno);
    pollfd wait{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    if (::poll(&wait, 1, by.left_ms()) <= 0) return Error(ErrorCode::kDeadlineExceeded, "connect: no answer");
    int failed = 0;
    socklen_t length = sizeof failed;
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failed, &length) != 0 || failed != 0) return errno_error("connect", failed);
  }
  return socket;
}

}  // namespace

Result<sys::Fd> dial_registry(const image::AllowedRegistry& host, Deadline by) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int failed = ::getaddrinfo(host.host.c_str(), std::to_string(host.port).c_str(), &hints, &found); failed != 0)
    return Error(ErrorCode::kUnavailable, "resolve " + host.host + ": " + ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  Result<sys::Fd> last = Error(ErrorCode::kPermissionDenied, host.host + " leads to no address that may be dialled");
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (!may_dial(host, *one->ai_addr)) continue;
    last = connect_to(*one, by);
    if (last.ok()) return last;
  }
  return last;
}

}  // namespace dsec
