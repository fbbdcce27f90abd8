#include "net/wire.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

namespace dsec::net {

struct Wire::Tls {
  SSL_CTX* context = nullptr;
  SSL* session = nullptr;
  ~Tls() {
    SSL_free(session);
    SSL_CTX_free(context);
  }
};

std::string ServerAddress::authority() const {
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  const bool usual = port == (tls ? "443" : "80");
  return usual ? name : name + ":" + port;
}

Result<ServerAddress> parse_server_address(std::string_view url) {
  ServerAddress out;
  const std::string whole(url);
  if (url.starts_with("https://")) {
    out.tls = true;
    url.remove_prefix(8);
  } else if (url.starts_with("http://")) {
    url.remove_prefix(7);
  } else {
    return invalid_argument("\"" + whole + "\" is not an address of a server: http://HOST:PORT or https://HOST");
  }
  const std::size_t slash = url.find('/');
  std::string_view authority = url.substr(0, slash);
  if (slash != std::string_view::npos) out.prefix = std::string(url.substr(slash));
  while (out.prefix.ends_with('/')) out.prefix.pop_back();
  if (authority.find('@') != std::string_view::npos) return invalid_argument("\"" + whole + "\": a user name has no place in the address");
  if (authority.starts_with('[')) {
    const std::size_t end = authority.find(']');
    if (end == std::string_view::npos) return invalid_argument("\"" + whole + "\": the bracket is not closed");
    out.host = std::string(authority.substr(1, end - 1));
    authority.remove_prefix(end + 1);
  } else {
    const std::size_t colon = authority.find(':');
    out.host = std::string(authority.substr(0, colon));
    authority.remove_prefix(colon == std::string_view::npos ? authority.size() : colon);
  }
  out.port = authority.starts_with(':') ? std::string(authority.substr(1)) : (out.tls ? "443" : "80");
  if (out.host.empty() || out.port.empty() || out.port.find_first_not_of("0123456789") != std::string::npos)
    return invalid_argument("\"" + whole + "\" is not an address of a server");
  return out;
}

Wire::Wire(sys::Fd fd, std::unique_ptr<Tls> tls) : fd_(std::move(fd)), tls_(std::move(tls)), read_wants_(POLLIN), write_wants_(POLLOUT) {}
Wire::~Wire() = default;

namespace {

Result<sys::Fd> connect_one(const addrinfo& entry, Deadline deadline) {
  sys::Fd fd(::socket(entry.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_error("socket", errno);
  if (::connect(fd.get(), entry.ai_addr, entry.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno_error("connect", errno);
    pollfd waiting{fd.get(), POLLOUT, 0};
    const int ready = ::poll(&waiting, 1, deadline.left_ms());
    if (ready == 0) return errno_error("connect", ETIMEDOUT);
    if (ready < 0) return errno_error("poll", errno);
    int failure = 0;
    socklen_t size = sizeof failure;
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &failure, &size);
    if (failure != 0) return errno_error("connect", failure);
  }
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

std::string tls_reason() {
  const unsigned long code = ERR_get_error();
  if (code == 0) return "the connection was closed";
  char text[200];
  ERR_error_string_n(code, text, sizeof text);
  return text;
}

}  // namespace

Result<std::unique_ptr<Wire>> Wire::connect(const ServerAddress& address, Deadline deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  if (const int failure = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found); failure != 0)
    return Error(ErrorCode::kUnavailable, address.host + ": " + gai_strerror(failure));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  Result<sys::Fd> fd = Error(ErrorCode::kUnavailable, address.host + " has no address");
  for (const addrinfo* entry = found; entry != nullptr && !fd.ok(); entry = entry->ai_next) fd = connect_one(*entry, deadline);
  if (!fd.ok()) return std::move(fd).error();

  std::unique_ptr<Tls> tls;
  if (address.tls) {
    tls = std::make_unique<Tls>();
    tls->context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_min_proto_version(tls->context, TLS1_2_VERSION);
    SSL_CTX_set_default_verify_paths(tls->context);
    if (!address.authorities.empty() && SSL_CTX_load_verify_locations(tls->context, address.authorities.c_str(), nullptr) != 1)
      return Error(ErrorCode::kInvalidArgument, address.authorities + " holds no certificates: " + tls_reason());
    SSL_CTX_set_verify(tls->context, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_mode(tls->context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    tls->session = SSL_new(tls->context);
    SSL_set_fd(tls->session, fd.value().get());
    SSL_set_tlsext_host_name(tls->session, address.host.c_str());
    SSL_set1_host(tls->session, address.host.c_str());
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls->session), address.host.c_str());
  }
  std::unique_ptr<Wire> wire(new Wire(std::move(fd).value(), std::move(tls)));
  while (wire->tls_) {
    ERR_clear_error();
    const int done = SSL_connect(wire->tls_->session);
    if (done == 1) break;
    auto outcome = wire->tls_outcome(done, &wire->read_wants_, "TLS handshake");
    const long verdict = SSL_get_verify_result(wire->tls_->session);
    if (!outcome.ok() && verdict != X509_V_OK)
      return Error(ErrorCode::kUnavailable, "the certificate of " + address.authority() + " is refused: " + X509_verify_cert_error_string(verdict));
    if (!outcome.ok()) return std::move(outcome).error();
    DSEC_TRY(wire->poll_for(wire->read_wants_, deadline));
  }
  return wire;
}

Result<std::size_t> Wire::tls_outcome(int returned, short* wanted, const char* doing) {
  switch (SSL_get_error(tls_->session, returned)) {
    case SSL_ERROR_WANT_READ:
      *wanted = POLLIN;
      return std::size_t{0};
    case SSL_ERROR_WANT_WRITE:
      *wanted = POLLOUT;
      return std::size_t{0};
    case SSL_ERROR_ZERO_RETURN:
      return Error(ErrorCode::kUnavailable, "the server closed the connection");
    default:
      return Error(ErrorCode::kUnavailable, std::string(doing) + ": " + tls_reason());
  }
}

Result<std::size_t> Wire::try_read(char* out, std::size_t limit) {
  if (tls_) {
    ERR_clear_error();
    const int got = SSL_read(tls_->session, out, static_cast<int>(std::min<std::size_t>(limit, 1 << 20)));
    if (got > 0) return static_cast<std::size_t>(got);
    return tls_outcome(got, &read_wants_, "read");
  }
  const ssize_t got = ::recv(fd_.get(), out, limit, 0);
  if (got > 0) return static_cast<std::size_t>(got);
  if (got == 0) return Error(ErrorCode::kUnavailable, "the server closed the connection");
  if (errno == EAGAIN || errno == EINTR) return std::size_t{0};
  return errno_error("read from the server", errno);
}

Result<std::size_t> Wire::try_write(std::string_view bytes) {
  if (bytes.empty()) return std::size_t{0};
  if (tls_) {
    ERR_clear_error();
    const int put = SSL_write(tls_->session, bytes.data(), static_cast<int>(std::min<std::size_t>(bytes.size(), 1 << 20)));
    if (put > 0) return static_cast<std::size_t>(put);
    return tls_outcome(put, &write_wants_, "write");
  }
  const ssize_t put = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (put >= 0) return static_cast<std::size_t>(put);
  if (errno == EAGAIN || errno == EINTR) return std::size_t{0};
  return errno_error("write to the server", errno);
}

Result<std::size_t> Wire::read_some(char* out, std::size_t limit, Deadline deadline) {
  while (true) {
    DSEC_ASSIGN(const std::size_t got, try_read(out, limit));
    if (got > 0) return got;
    DSEC_TRY(poll_for(read_wants_, deadline));
  }
}

Result<void> Wire::write_all(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    DSEC_ASSIGN(const std::size_t put, try_write(bytes));
    bytes.remove_prefix(put);
    if (put == 0) DSEC_TRY(poll_for(write_wants_, deadline));
  }
  return {};
}

bool Wire::buffered() const { return tls_ && SSL_pending(tls_->session) > 0; }

Result<void> Wire::wait(bool to_write, Deadline deadline) {
  if (buffered()) return {};
  return poll_for(static_cast<short>(read_wants_ | (to_write ? write_wants_ : 0)), deadline);
}

bool Wire::stale() {
  pollfd now{fd_.get(), POLLIN, 0};
  return buffered() || ::poll(&now, 1, 0) != 0;
}

Result<void> Wire::poll_for(short events, Deadline deadline) {
  pollfd waiting{fd_.get(), events, 0};
  const int ready = ::poll(&waiting, 1, deadline.left_ms());
  if (ready > 0 || (ready < 0 && errno == EINTR && !deadline.passed())) return {};
  if (ready == 0) return Error(ErrorCode::kDeadlineExceeded, "the server does not answer");
  return errno_error("wait for the server", errno);
}

}  // namespace dsec::net
