#include "image/registry_gate.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

constexpr std::size_t kMostConnections = 256;  // of one pull
constexpr auto kDialPatience = std::chrono::seconds(20);

sockaddr_in socket_address(const std::string& host, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  ::inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

Result<void> control(int socket, unsigned long request, ifreq& what) {
  if (::ioctl(socket, request, &what) != 0) return errno_error("set up the worker's network", errno);
  return {};
}

// Loopback comes up, and has this address beside its own.
Result<void> add_address(int socket, const std::string& label, const std::string& host) {
  ifreq what{};
  std::strncpy(what.ifr_name, label.c_str(), sizeof what.ifr_name - 1);
  const sockaddr_in address = socket_address(host, 0);
  std::memcpy(&what.ifr_addr, &address, sizeof address);
  DSEC_TRY(control(socket, SIOCSIFADDR, what));
  what.ifr_flags = IFF_UP | IFF_RUNNING | IFF_LOOPBACK;
  return control(socket, SIOCSIFFLAGS, what);
}

Result<sys::Fd> listen_on(const std::string& host, std::uint16_t port) {
  sys::Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) return errno_error("make a socket", errno);
  const sockaddr_in address = socket_address(host, port);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || ::listen(listener.get(), 64) != 0)
    return errno_error("listen for the worker on " + host, errno);
  return listener;
}

// Bytes on their way from one side to the other.
class Flow {
 public:
  Flow(pollfd& from, pollfd& to, std::atomic<std::uint64_t>* counter) : from_(from), to_(to), counter_(counter) {}

  bool done() const { return !open_ && begin_ == end_; }
  void ask() {
    if (begin_ != end_) to_.events |= POLLOUT;
    else if (open_) from_.events |= POLLIN;
  }
  // False when the connection is over.
  bool move() {
    if (begin_ != end_) return to_.revents == 0 || send();
    return !open_ || from_.revents == 0 || receive();
  }

 private:
  bool receive() {
    const ssize_t got = ::recv(from_.fd, bytes_.data(), bytes_.size(), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    begin_ = 0;
    end_ = static_cast<std::size_t>(got);
    open_ = got != 0;
    if (!open_) ::shutdown(to_.fd, SHUT_WR);
    if (counter_ != nullptr) *counter_ += end_;
    return true;
  }
  bool send() {
    const ssize_t put = ::send(to_.fd, bytes_.data() + begin_, end_ - begin_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put < 0) return errno == EAGAIN || errno == EINTR;
    begin_ += static_cast<std::size_t>(put);
    return true;
  }

  pollfd& from_;
  pollfd& to_;
  std::atomic<std::uint64_t>* const counter_;
  std::vector<char> bytes_ = std::vector<char>(64 << 10);
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool open_ = true;  // more may come
};

}  // namespace

RegistryGate::RegistryGate(Options options) : options_(std::move(options)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  for (const AllowedRegistry& one : options_.allowed) {
    if (addresses_.contains(one.host)) continue;
    const std::size_t number = addresses_.size() + 1;
    addresses_[one.host] = one.is_literal() ? one.host : one.host == "localhost" ? "127.0.0.1" : "127.1." + std::to_string(number / 250) + "." + std::to_string(number % 250 + 1);
  }
}

RegistryGate::~RegistryGate() {
  const std::uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof one);
  if (server_.joinable()) server_.join();
  for (std::thread& connection : connections_) connection.join();
}

std::string RegistryGate::hosts() const {
  std::string out;
  for (const auto& [host, address] : addresses_) {
    if (host != address) out += address + " " + host + "\n";
  }
  return out;
}

Result<void> RegistryGate::open(int pid) {
  if (!stop_) return Error(ErrorCode::kExhausted, "no descriptor is left for the worker's network");
  DSEC_ASSIGN(const sys::Fd inside, sys::open_at(AT_FDCWD, "/proc/" + std::to_string(pid) + "/ns/net", O_RDONLY));
  // A thread of its own, which is over before anyone could use it for anything else.
  Result<void> done;
  std::thread([&] { done = listen_inside(inside.get()); }).join();
  DSEC_TRY(done);
  server_ = std::thread([this] { serve(); });
  return {};
}

Result<void> RegistryGate::listen_inside(int network_namespace) {
  if (::setns(network_namespace, CLONE_NEWNET) != 0) return errno_error("enter the worker's network", errno);
  const sys::Fd configuring(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!configuring) return errno_error("make a socket", errno);
  DSEC_TRY(add_address(configuring.get(), "lo", "127.0.0.1"));
  std::size_t alias = 0;
  for (const auto& [host, address] : addresses_) {
    if (!address.starts_with("127.")) DSEC_TRY(add_address(configuring.get(), "lo:" + std::to_string(alias++), address));
  }
  for (const AllowedRegistry& one : options_.allowed) {
    DSEC_ASSIGN(sys::Fd listener, listen_on(addresses_.at(one.host), one.port));
    listeners_.push_back(std::move(listener));
  }
  return {};
}

void RegistryGate::serve() {
  std::vector<pollfd> waits;
  for (const sys::Fd& listener : listeners_) waits.push_back({.fd = listener.get(), .events = POLLIN, .revents = 0});
  waits.push_back({.fd = stop_.get(), .events = POLLIN, .revents = 0});
  for (;;) {
    if (::poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) return;
    if (waits.back().revents != 0) return;
    for (std::size_t i = 0; i < listeners_.size(); i++) {
      if (waits[i].revents == 0) continue;
      sys::Fd client(::accept4(listeners_[i].get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client || connections_.size() >= kMostConnections) continue;
      connections_.emplace_back([this, to = options_.allowed[i], taken = std::move(client)]() mutable { carry(std::move(taken), to); });
    }
  }
}

void RegistryGate::carry(sys::Fd client, const AllowedRegistry& to) {
  const Result<sys::Fd> dialled = options_.dial(to, Deadline::in(kDialPatience));
  if (!dialled.ok()) {
    log_warning("a registry cannot be reached", {{"host", to.host}, {"error", dialled.error().message()}});
    return;
  }
  std::array<pollfd, 3> waits = {pollfd{.fd = client.get(), .events = 0, .revents = 0}, pollfd{.fd = dialled->get(), .events = 0, .revents = 0}, pollfd{.fd = stop_.get(), .events = POLLIN, .revents = 0}};
  Flow out(waits[0], waits[1], nullptr);
  Flow in(waits[1], waits[0], &received_);
  while (!out.done() || !in.done()) {
    waits[0].events = waits[1].events = 0;
    out.ask();
    in.ask();
    std::array<pollfd, 3> asked = waits;
    // A side that is asked nothing would wake us for ever once it has hung up.
    for (pollfd& one : asked) {
      if (one.events == 0) one.fd = -1;
    }
    const int ready = ::poll(asked.data(), asked.size(), static_cast<int>(options_.idle_limit.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0 || asked[2].revents != 0) return;
    for (std::size_t i = 0; i < 2; i++) waits[i].revents = asked[i].revents;
    if (!out.move() || !in.move()) return;
  }
}

}  // namespace dsec::image
