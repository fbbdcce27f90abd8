// port-forward: HTTP on a local port leads to an HTTP port inside, with the key
// added on the way. One request a connection; WebSockets pass.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <thread>

#include "cli/terminal.h"
#include "cli/verbs.h"
#include "sys/file.h"

namespace dsec::cli {
namespace {

struct Forward {
  std::uint16_t local = 0;
  std::uint16_t inside = 0;
};

// "8000", "9000:8000", ":8000" (any free local port)
Result<Forward> parse_forward(const std::string& text) {
  const std::size_t colon = text.find(':');
  const auto number = [&text](const std::string& part) -> Result<std::uint16_t> {
    char* end = nullptr;
    const long value = std::strtol(part.c_str(), &end, 10);
    if (part.empty() || *end != '\0' || value < 1 || value > 65535) return invalid_argument("\"" + text + "\" is no port: write PORT or LOCAL:PORT");
    return static_cast<std::uint16_t>(value);
  };
  Forward out;
  DSEC_ASSIGN(out.inside, number(colon == std::string::npos ? text : text.substr(colon + 1)));
  if (colon == 0) return out;
  DSEC_ASSIGN(out.local, number(text.substr(0, colon)));
  return out;
}

Result<sys::Fd> listen_local(const std::string& address, std::uint16_t port, std::uint16_t* bound) {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(port);
  if (::inet_pton(AF_INET, address.c_str(), &where.sin_addr) != 1) return invalid_argument("\"" + address + "\" is no IPv4 address");
  sys::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return errno_error("socket", errno);
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&where), sizeof where) != 0 || ::listen(fd.get(), 64) != 0)
    return errno_error(address + ":" + std::to_string(port), errno);
  socklen_t size = sizeof where;
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&where), &size);
  *bound = ntohs(where.sin_port);
  return fd;
}

// The request's head with the path inside the API, our key, and one request a connection.
std::string rewritten_head(const std::string& head, const net::ServerAddress& server, const std::string& path, const std::string& key) {
  const std::size_t line_end = head.find("\r\n");
  const std::string line = head.substr(0, line_end);
  const std::size_t first = line.find(' ');
  const std::size_t second = line.rfind(' ');
  if (first == std::string::npos || second <= first + 1 || line[first + 1] != '/') return "";
  std::string out = line.substr(0, first + 1) + server.prefix + path + line.substr(first + 1, second - first - 1) + line.substr(second) + "\r\n";
  bool upgrade = false;
  std::size_t begin = line_end + 2;
  while (begin < head.size()) {
    const std::size_t end = head.find("\r\n", begin);
    if (end == std::string::npos || end == begin) break;
    std::string field = head.substr(begin, end - begin);
    begin = end + 2;
    std::string name = field.substr(0, field.find(':'));
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (name == "upgrade") upgrade = true;
    if (name == "connection" || name == "authorization" || name == "x-api-key" || name == "keep-alive" || name == "host") continue;
    out += field + "\r\n";
  }
  out += "Host: " + server.authority() + "\r\nConnection: " + (upgrade ? "Upgrade" : "close") + "\r\n";
  if (!key.empty()) out += "Authorization: Bearer " + key + "\r\n";
  return out + "\r\n";
}

void serve_connection(sys::Fd local, const net::ServerAddress& server, const std::string& path, const std::string& key) {
  std::string head;
  char part[32 << 10];
  while (head.find("\r\n\r\n") == std::string::npos) {
    const ssize_t got = ::recv(local.get(), part, sizeof part, 0);
    if (got <= 0 || head.size() > (64 << 10)) return;
    head.append(part, static_cast<std::size_t>(got));
  }
  const std::size_t end = head.find("\r\n\r\n") + 4;
  std::string up = rewritten_head(head.substr(0, end), server, path, key);
  if (up.empty()) return;
  up += head.substr(end);
  auto wire = net::Wire::connect(server, Deadline::in(std::chrono::seconds(10)));
  if (!wire.ok()) {
    (void)sys::write_all(local.get(), "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").ok();
    return;
  }
  const Deadline never = Deadline::in(std::chrono::hours(24));
  if (!(*wire)->write_all(up, never).ok()) return;
  bool local_open = true;
  while (true) {
    pollfd waiting[2] = {{(*wire)->fd(), POLLIN, 0}, {local_open ? local.get() : -1, POLLIN, 0}};
    if (::poll(waiting, 2, (*wire)->buffered() ? 0 : -1) < 0 && errno != EINTR) return;
    if (waiting[1].revents) {
      const ssize_t got = ::recv(local.get(), part, sizeof part, 0);
      if (got <= 0) local_open = false;
      else if (!(*wire)->write_all(std::string_view(part, static_cast<std::size_t>(got)), never).ok()) return;
    }
    auto got = (*wire)->try_read(part, sizeof part);
    if (!got.ok()) return;
    if (*got > 0 && !sys::write_all(local.get(), std::string_view(part, *got)).ok()) return;
  }
}

}  // namespace

int port_forward_verb(Context& context, const std::string& ref, const std::vector<std::string>& ports, const std::string& address) {
  ::signal(SIGPIPE, SIG_IGN);
  auto sandbox = context.get(sandbox_target(ref));
  if (!sandbox.ok()) return fail(sandbox.error());
  const std::string id = text_at(sandbox->as_object(), "id");
  const auto server = net::parse_server_address(context.endpoint().url);
  std::vector<sys::Fd> listeners;
  std::vector<std::string> paths;
  for (const std::string& text : ports) {
    const auto forward = parse_forward(text);
    if (!forward.ok()) return fail(forward.error(), kUsage);
    std::uint16_t bound = 0;
    auto listener = listen_local(address, forward->local ? forward->local : text.starts_with(':') ? 0 : forward->inside, &bound);
    if (!listener.ok()) return fail(listener.error());
    listeners.push_back(std::move(listener).value());
    paths.push_back(sandbox_target(id, "/ports/" + std::to_string(forward->inside)));
    print("http://" + address + ":" + std::to_string(bound) + " -> " + id + ":" + std::to_string(forward->inside) + "\n");
  }
  auto signals = SignalWatch::watch({SIGINT, SIGTERM});
  if (!signals.ok()) return fail(signals.error());
  while (true) {
    std::vector<pollfd> waiting = {{signals->fd(), POLLIN, 0}};
    for (const sys::Fd& listener : listeners) waiting.push_back({listener.get(), POLLIN, 0});
    if (::poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) return fail(errno_error("poll", errno));
    if (waiting[0].revents) return kOk;
    for (std::size_t i = 0; i < listeners.size(); ++i) {
      if (!waiting[i + 1].revents) continue;
      sys::Fd local(::accept4(listeners[i].get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!local) continue;
      std::thread([fd = std::move(local), address_copy = *server, path = paths[i], key = context.endpoint().api_key]() mutable {
        serve_connection(std::move(fd), address_copy, path, key);
      }).detach();
    }
  }
}

}  // namespace dsec::cli
