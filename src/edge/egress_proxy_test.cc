// The proxy with real sockets, in a network namespace of its own: a local route
// makes 203.0.113.0/24 answer here without being an address of the node, so it
// stands for the public internet.
#include "edge/egress_proxy.h"

#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <atomic>
#include <future>
#include <gtest/gtest.h>
#include <mutex>
#include <random>
#include <thread>

#include "edge/egress_dns.h"

extern char** environ;

namespace dsec::edge {
namespace {

using namespace std::chrono_literals;

constexpr const char* kPublic = "203.0.113.10";

sys::Fd socket_with_deadline(int type) {
  sys::Fd fd(socket(AF_INET, type | SOCK_CLOEXEC, 0));
  const timeval limit{.tv_sec = 5, .tv_usec = 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  return fd;
}

sockaddr_in address_of(const char* text, std::uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(port);
  const IpAddress address = *parse_address(text);
  std::memcpy(&out.sin_addr, address.bytes.data() + 12, 4);
  return out;
}

struct Bound {
  sys::Fd fd;
  std::uint16_t port = 0;
};

Bound bind_at(const char* text, int type) {
  Bound out{.fd = socket_with_deadline(type)};
  sockaddr_in address = address_of(text, 0);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(out.fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  if (type == SOCK_STREAM) {
    EXPECT_EQ(listen(out.fd.get(), 64), 0);
  }
  getsockname(out.fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  out.port = ntohs(address.sin_port);
  return out;
}

sys::Fd connect_to(std::uint16_t port, int type = SOCK_STREAM) {
  sys::Fd fd = socket_with_deadline(type);
  const sockaddr_in address = address_of("127.0.0.1", port);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return fd;
}

void put(const sys::Fd& fd, const std::string& bytes) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t sent = send(fd.get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return;
    at += static_cast<std::size_t>(sent);
  }
}

// Until `end` is there, or the peer closed, or nothing came for the socket's time.
// Reads no byte past `end`: what follows it may have come in the same segment.
std::string get_until(const sys::Fd& fd, const std::string& end) {
  std::string out;
  char buffer[4096];
  while (end.empty() || out.find(end) == std::string::npos) {
    const ssize_t got = recv(fd.get(), buffer, end.empty() ? sizeof buffer : 1, 0);
    if (got <= 0) break;
    out.append(buffer, static_cast<std::size_t>(got));
  }
  return out;
}
std::string get_all(const sys::Fd& fd) { return get_until(fd, ""); }

class FakeResolver final : public EgressResolver {
 public:
  boost::asio::awaitable<Result<std::vector<IpAddress>>> resolve(std::string host, Deadline) override {
    ++asked;
    const auto found = answers.find(host);
    if (found == answers.end()) co_return Error(ErrorCode::kNotFound, "no such host: " + host);
    std::vector<std::vector<const char*>>& turns = found->second;
    std::vector<IpAddress> out;
    for (const char* text : turns.front()) out.push_back(*parse_address(text));
    if (turns.size() > 1) turns.erase(turns.begin());
    co_return out;
  }
  std::map<std::string, std::vector<std::vector<const char*>>> answers;  // one after the other; the last one stays
  std::atomic<int> asked = 0;
};

class EgressProxyTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root: a network namespace";
    outside_ = sys::Fd(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(unshare(CLONE_NEWNET), 0);
    ifreq request{};
    std::strcpy(request.ifr_name, "lo");
    request.ifr_flags = IFF_UP;
    const sys::Fd control(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(ioctl(control.get(), SIOCSIFFLAGS, &request), 0);
    const char* route[] = {"ip", "route", "add", "local", "203.0.113.0/24", "dev", "lo", nullptr};
    pid_t pid = 0;
    int status = 0;
    if (posix_spawnp(&pid, "ip", nullptr, nullptr, const_cast<char**>(route), environ) != 0 || waitpid(pid, &status, 0) != pid || status != 0)
      GTEST_SKIP() << "needs iproute2: a local route";
    resolver_.answers["a.example"] = {{kPublic}};
  }
  void TearDown() override {
    if (loop_.joinable()) {
      on_loop([this] { proxy_.reset(); });
      work_.reset();
      io_.stop();
      loop_.join();
    }
    if (outside_) {
      EXPECT_EQ(setns(outside_.get(), CLONE_NEWNET), 0);
    }
  }

  static EgressPolicy policy_of(std::vector<model::NetworkRule> rules, std::vector<model::ServiceDefinition> services = {}) {
    model::Network network{.mode = model::NetworkMode::kProxy, .rules = std::move(rules)};
    for (const auto& service : services) network.services.push_back(service.name);
    return EgressPolicy::create(network, services).value();
  }

  void start(EgressPolicy policy, EgressProxy::Options options = {}) {
    Bound http = bind_at("127.0.0.1", SOCK_STREAM);
    Bound tcp = bind_at("127.0.0.1", SOCK_STREAM);
    Bound udp = bind_at("127.0.0.1", SOCK_DGRAM);
    http_port_ = http.port;
    dns_tcp_port_ = tcp.port;
    dns_udp_port_ = udp.port;
    std::vector<sys::Fd> listeners;
    listeners.push_back(std::move(http.fd));
    listeners.push_back(std::move(tcp.fd));
    listeners.push_back(std::move(udp.fd));
    loop_ = std::thread([this] { io_.run(); });
    on_loop([&] {
      proxy_ = std::make_unique<EgressProxy>(io_, resolver_, clock_, options, [this](const EgressEvent& event) {
        const std::lock_guard lock(mutex_);
        events_.push_back(event);
      });
      EXPECT_TRUE(proxy_->serve("sandbox", std::move(listeners), std::move(policy)).ok());
    });
  }
  template <typename Work>
  void on_loop(Work work) {
    std::promise<void> done;
    boost::asio::post(io_, [&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }
  std::vector<EgressEvent> events() {
    on_loop([] {});
    const std::lock_guard lock(mutex_);
    return events_;
  }
  sys::Fd client() { return connect_to(http_port_); }
  std::string ask(const std::string& request) {
    const sys::Fd fd = client();
    put(fd, request);
    return get_all(fd);
  }
  // "CONNECT a.example:PORT", the answer read.
  sys::Fd tunnel(const std::string& host, std::uint16_t port) {
    sys::Fd fd = client();
    const std::string target = host + ":" + std::to_string(port);
    put(fd, "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n\r\n");
    EXPECT_EQ(get_until(fd, "\r\n\r\n"), "HTTP/1.1 200 Connection established\r\n\r\n");
    return fd;
  }

  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{io_.get_executor()};
  FakeResolver resolver_;
  SystemClock clock_;
  std::unique_ptr<EgressProxy> proxy_;
  std::uint16_t http_port_ = 0, dns_tcp_port_ = 0, dns_udp_port_ = 0;

 private:
  sys::Fd outside_;
  std::thread loop_;
  std::mutex mutex_;  // guards events_
  std::vector<EgressEvent> events_;
};

// Serves `count` connections on the public address, one after the other.
class Server {
 public:
  Server(int count, std::function<void(const sys::Fd&)> serve) : bound_(bind_at(kPublic, SOCK_STREAM)) {
    thread_ = std::thread([this, count, serve = std::move(serve)] {
      for (int i = 0; i < count; ++i) {
        const sys::Fd fd(accept4(bound_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!fd) return;
        const timeval limit{.tv_sec = 5, .tv_usec = 0};
        setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        serve(fd);
        ++served;
      }
    });
  }
  ~Server() {
    shutdown(bound_.fd.get(), SHUT_RDWR);
    thread_.join();
  }
  std::uint16_t port() const { return bound_.port; }
  std::string url() const { return "http://a.example:" + std::to_string(port()) + "/"; }
  std::string host() const { return "a.example:" + std::to_string(port()); }
  std::atomic<int> served = 0;

 private:
  Bound bound_;
  std::thread thread_;
};

TEST_F(EgressProxyTest, ForwardsSeveralRequestsOfOneConnection) {
  std::vector<std::string> seen;
  Server server(2, [&seen](const sys::Fd& fd) {
    seen.push_back(get_until(fd, "\r\n\r\n"));
    put(fd, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
  });
  start(policy_of({{.domain = "a.example"}}));

  const sys::Fd fd = client();
  for (int i = 0; i < 2; ++i) {
    put(fd, "GET " + server.url() + "x HTTP/1.1\r\nHost: " + server.host() + "\r\nProxy-Authorization: Basic eA==\r\n\r\n");
    EXPECT_EQ(get_until(fd, "ok"), "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok");
  }

  EXPECT_EQ(seen.front(), "GET /x HTTP/1.1\r\nHost: " + server.host() + "\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(events().front().address, kPublic);
}

TEST_F(EgressProxyTest, CarriesAChunkedUploadAndAnAnswerThatEndsWithTheConnection) {
  std::string seen;
  Server server(1, [&seen](const sys::Fd& fd) {
    seen = get_until(fd, "0\r\n\r\n");
    put(fd, "HTTP/1.1 200 OK\r\n\r\n" + std::string(300'000, 'x'));
  });
  start(policy_of({{.domain = "a.example"}}));

  const std::string answer = ask("POST " + server.url() + " HTTP/1.1\r\nHost: " + server.host() + "\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");

  EXPECT_NE(seen.find("\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), std::string::npos);
  EXPECT_EQ(answer, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + std::string(300'000, 'x'));
}

TEST_F(EgressProxyTest, RefusesWhatNoRuleNamesAndSaysSo) {
  start(policy_of({{.domain = "a.example"}}));

  EXPECT_EQ(ask("GET http://b.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n"),
            "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 71\r\nConnection: close\r\n\r\n"
            "dsec egress: no service and no rule of this sandbox names b.example:80\n");
  EXPECT_TRUE(ask("CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n").starts_with("HTTP/1.1 403"));
  EXPECT_EQ(resolver_.asked, 0);
  EXPECT_FALSE(events().front().allowed);
}

TEST_F(EgressProxyTest, ResolvesOnceAndNeverDialsAnAddressThatANameWasTurnedTo) {
  Server server(1, [](const sys::Fd& fd) {
    get_until(fd, "\r\n\r\n");
    put(fd, "HTTP/1.1 204 No Content\r\n\r\n");
  });
  resolver_.answers["a.example"] = {{kPublic}, {"127.0.0.1"}, {"::ffff:127.0.0.1"}, {"10.0.0.1", "169.254.169.254"}};
  start(policy_of({{.domain = "a.example"}, {.cidr = "0.0.0.0/0"}}));
  const std::string request = "GET " + server.url() + " HTTP/1.1\r\nHost: " + server.host() + "\r\nConnection: close\r\n\r\n";

  EXPECT_TRUE(ask(request).starts_with("HTTP/1.1 204"));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(ask(request).starts_with("HTTP/1.1 403"));
  EXPECT_EQ(resolver_.asked, 4);
}

TEST_F(EgressProxyTest, DialsLoopbackWhenARuleNamesIt) {
  Bound local = bind_at("127.0.0.1", SOCK_STREAM);
  start(policy_of({{.cidr = "127.0.0.0/8", .port = local.port}}));

  const sys::Fd fd = tunnel("127.0.0.1", local.port);

  EXPECT_TRUE(fd);
}

std::string client_hello(const std::string& name) {
  const auto counted = [](std::size_t width, const std::string& body) {
    std::string out;
    for (std::size_t i = width; i-- > 0;) out.push_back(static_cast<char>(body.size() >> (8 * i) & 0xff));
    return out + body;
  };
  const std::string extension = std::string("\0\0", 2) + counted(2, counted(2, std::string(1, '\0') + counted(2, name)));
  const std::string body = std::string("\x03\x03", 2) + std::string(32, 'r') + counted(1, "") + counted(2, std::string("\x13\x01", 2)) +
                           counted(1, std::string(1, '\0')) + counted(2, extension);
  return "\x16\x03\x01" + counted(2, "\x01" + counted(3, body));
}

TEST_F(EgressProxyTest, LetsTlsThroughForTheNameThatWasAskedFor) {
  const std::string hello = client_hello("A.example");
  Server server(1, [&hello](const sys::Fd& fd) {
    EXPECT_EQ(get_until(fd, hello), hello);
    put(fd, "server hello");
  });
  start(policy_of({{.domain = "a.example"}}));

  const sys::Fd fd = tunnel("a.example", server.port());
  put(fd, hello.substr(0, 20));
  put(fd, hello.substr(20));

  EXPECT_EQ(get_all(fd), "server hello");
}

TEST_F(EgressProxyTest, CutsATunnelForAnotherServerName) {
  std::string seen = "nothing yet";
  {
    Server server(3, [&seen](const sys::Fd& fd) { seen = get_all(fd); });
    start(policy_of({{.domain = "a.example"}}));
    for (const std::string& first : {client_hello("b.example"), std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\x16\x03\x01\x00\x00", 5)}) {
      const sys::Fd fd = tunnel("a.example", server.port());
      put(fd, first);
      EXPECT_EQ(get_all(fd), "");
    }
  }

  EXPECT_EQ(seen, "");
  EXPECT_FALSE(events().at(1).allowed);
}

TEST_F(EgressProxyTest, CarriesOtherProtocolsOnAPortThatARuleNames) {
  Server server(1, [](const sys::Fd& fd) {
    put(fd, "220 ready\r\n");
    EXPECT_EQ(get_all(fd), "QUIT\r\n");  // ends only when the client's half has closed
    put(fd, "221 bye\r\n");
  });
  start(policy_of({{.domain = "a.example", .port = server.port()}}));

  const sys::Fd fd = tunnel("a.example", server.port());
  EXPECT_EQ(get_until(fd, "\r\n"), "220 ready\r\n");
  put(fd, "QUIT\r\n");
  shutdown(fd.get(), SHUT_WR);

  EXPECT_EQ(get_all(fd), "221 bye\r\n");
}

TEST_F(EgressProxyTest, HoldsBackAWriterWhoseReaderIsSlow) {
  std::atomic<std::size_t> sent = 0;
  std::promise<void> blocked;
  Server server(1, [&](const sys::Fd& fd) {
    const timeval limit{.tv_sec = 1, .tv_usec = 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    const std::string block(64 << 10, 'x');
    for (ssize_t part; (part = send(fd.get(), block.data(), block.size(), MSG_NOSIGNAL)) > 0;) sent += static_cast<std::size_t>(part);
    blocked.set_value();
  });
  start(policy_of({{.domain = "a.example", .port = server.port()}}));

  const sys::Fd slow = tunnel("a.example", server.port());
  ASSERT_EQ(blocked.get_future().wait_for(30s), std::future_status::ready);

  EXPECT_LT(sent, std::size_t{32} << 20);  // what the kernel's socket buffers take
  EXPECT_TRUE(ask("GET http://b.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n").starts_with("HTTP/1.1 403"));
}

TEST_F(EgressProxyTest, CutsFlowsThatANewPolicyDoesNotAllow) {
  Server server(1, [](const sys::Fd& fd) { get_all(fd); });
  resolver_.answers["c.example"] = {{kPublic}};
  start(policy_of({{.domain = "a.example", .port = server.port()}}));
  const sys::Fd fd = tunnel("a.example", server.port());

  on_loop([&] { EXPECT_TRUE(proxy_->update("sandbox", policy_of({{.domain = "c.example"}})).ok()); });

  EXPECT_EQ(get_all(fd), "");
  EXPECT_TRUE(ask("GET " + server.url() + " HTTP/1.1\r\nHost: " + server.host() + "\r\n\r\n").starts_with("HTTP/1.1 403"));
}

TEST_F(EgressProxyTest, CountsTheBytesOfAFlow) {
  Server server(1, [](const sys::Fd& fd) {
    get_until(fd, "12345");
    put(fd, "123");
  });
  start(policy_of({{.domain = "a.example", .port = server.port()}}));
  {
    const sys::Fd fd = tunnel("a.example", server.port());
    put(fd, "12345");
    shutdown(fd.get(), SHUT_WR);
    get_all(fd);
  }
  on_loop([&] { proxy_->stop("sandbox"); });

  const EgressEvent closed = events().back();
  EXPECT_EQ(closed.kind, EgressEvent::Kind::kClosed);
  EXPECT_EQ(closed.bytes_sent, 5U);
  EXPECT_EQ(closed.bytes_received, 3U);
}

TEST_F(EgressProxyTest, LeavesConnectionsPastTheLimitWaitingUntilOneEnds) {
  start(policy_of({}), {.connections_per_sandbox = 2});
  sys::Fd first = client();
  sys::Fd second = client();
  sys::Fd third = client();
  put(third, "GET http://b.example/ HTTP/1.1\r\nHost: b.example\r\n\r\n");
  const timeval soon{.tv_sec = 0, .tv_usec = 200'000};
  setsockopt(third.get(), SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
  EXPECT_EQ(get_all(third), "");

  first.reset();

  const timeval later{.tv_sec = 5, .tv_usec = 0};
  setsockopt(third.get(), SOL_SOCKET, SO_RCVTIMEO, &later, sizeof later);
  EXPECT_TRUE(get_all(third).starts_with("HTTP/1.1 403"));
}

TEST_F(EgressProxyTest, EndsAConnectionWhoseHeadDoesNotCome) {
  start(policy_of({}), {.header_timeout = 100ms});

  const sys::Fd fd = client();
  put(fd, "GET http://");

  EXPECT_EQ(get_all(fd), "");
}

TEST_F(EgressProxyTest, RefusesAHeadThatIsTooLong) {
  start(policy_of({{.domain = "a.example"}}));

  const std::string answer = ask("GET http://a.example/ HTTP/1.1\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n");

  EXPECT_TRUE(answer.starts_with("HTTP/1.1 431"));
}

TEST_F(EgressProxyTest, GoesThroughTheParentProxyOfAService) {
  std::string seen;
  Server parent(2, [&seen](const sys::Fd& fd) {
    const std::string head = get_until(fd, "\r\n\r\n");
    seen += head;
    if (head.starts_with("CONNECT")) {
      put(fd, "HTTP/1.1 200 OK\r\n\r\nfirst words");
      return;
    }
    put(fd, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
  });
  start(policy_of({}, {{.name = "registry", .hosts = {{.host = "r.example", .port = 80}, {.host = "r.example", .port = 8022}},
                        .via = std::string(kPublic) + ":" + std::to_string(parent.port())}}));

  EXPECT_TRUE(ask("GET http://r.example/x HTTP/1.1\r\nHost: r.example\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 200"));
  const sys::Fd fd = tunnel("r.example", 8022);

  EXPECT_EQ(get_all(fd), "first words");
  EXPECT_EQ(seen, "GET http://r.example/x HTTP/1.1\r\nHost: r.example\r\nConnection: close\r\n\r\nCONNECT r.example:8022 HTTP/1.1\r\nHost: r.example:8022\r\n\r\n");
  EXPECT_EQ(resolver_.asked, 0);
}

std::string dns_question(const std::string& labels, std::uint16_t type) {
  return std::string("\x12\x34\x01\x00\0\1\0\0\0\0\0\0", 12) + labels + std::string{static_cast<char>(type >> 8), static_cast<char>(type & 0xff), '\0', '\1'};
}
const std::string kAllowedLabels = std::string("\1a\7example\0", 11);
const std::string kOtherLabels = std::string("\1b\7example\0", 11);

std::string datagram(const sys::Fd& fd) {
  char buffer[2048];
  const ssize_t got = recv(fd.get(), buffer, sizeof buffer, 0);
  return got < 0 ? "" : std::string(buffer, static_cast<std::size_t>(got));
}

TEST_F(EgressProxyTest, AnswersForAllowedNamesAndDeniesOthersAtOnce) {
  resolver_.answers["a.example"] = {{kPublic, "10.0.0.1"}};
  start(policy_of({{.domain = "a.example"}}));
  const sys::Fd fd = connect_to(dns_udp_port_, SOCK_DGRAM);

  put(fd, dns_question(kAllowedLabels, kDnsTypeA));
  const std::string allowed = datagram(fd);
  put(fd, dns_question(kOtherLabels, kDnsTypeA));
  const std::string denied = datagram(fd);

  ASSERT_GE(denied.size(), 12U);
  EXPECT_EQ(denied[3] & 0xf, 3);
  ASSERT_GE(allowed.size(), 12U);
  EXPECT_EQ(allowed[3] & 0xf, 0);
  EXPECT_EQ(allowed[7], 1);  // the private address is not shown
  EXPECT_TRUE(allowed.ends_with(std::string("\xcb\x00\x71\x0a", 4)));
}

TEST_F(EgressProxyTest, AnswersOverTcpToo) {
  start(policy_of({{.domain = "a.example"}}));
  const sys::Fd fd = connect_to(dns_tcp_port_);
  const std::string question = dns_question(kAllowedLabels, kDnsTypeA);

  for (int i = 0; i < 2; ++i) {
    put(fd, std::string{'\0', static_cast<char>(question.size())} + question);
    EXPECT_TRUE(get_until(fd, std::string("\xcb\x00\x71\x0a", 4)).ends_with(std::string("\xcb\x00\x71\x0a", 4)));
  }
}

TEST_F(EgressProxyTest, StillAnswersAfterAStormOfHostilePackets) {
  start(policy_of({{.domain = "a.example"}}));
  const sys::Fd storm = connect_to(dns_udp_port_, SOCK_DGRAM);
  const sys::Fd fd = connect_to(dns_udp_port_, SOCK_DGRAM);
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = dns_question(kAllowedLabels, kDnsTypeA);
    bytes.resize(random() % 1500, 'x');
    for (std::size_t hits = random() % 8; hits > 0 && !bytes.empty(); --hits) bytes[random() % bytes.size()] = static_cast<char>(random());
    put(storm, bytes);
  }

  const timeval soon{.tv_sec = 0, .tv_usec = 100'000};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
  std::string answer;
  for (int attempt = 0; attempt < 50 && answer.empty(); ++attempt) {  // the socket's buffer may still be full
    put(fd, dns_question(kOtherLabels, kDnsTypeA));
    answer = datagram(fd);
  }

  ASSERT_GE(answer.size(), 12U);
  EXPECT_EQ(answer[3] & 0xf, 3);
}

TEST_F(EgressProxyTest, LetsNothingOverWhenASandboxIsStopped) {
  Server server(1, [](const sys::Fd& fd) { get_all(fd); });
  start(policy_of({{.domain = "a.example", .port = server.port()}}));
  const sys::Fd fd = tunnel("a.example", server.port());

  on_loop([&] { proxy_->stop("sandbox"); });

  EXPECT_EQ(get_all(fd), "");
  on_loop([&] { EXPECT_EQ(proxy_->connections("sandbox"), 0U); });
}

boost::asio::awaitable<void> resolve_into(SystemResolver& resolver, std::optional<Result<std::vector<IpAddress>>>& answer) {
  answer = co_await resolver.resolve("localhost", Deadline::in(10s));
}

TEST(SystemResolverTest, FindsTheLocalHostAndReturnsByTheDeadline) {
  boost::asio::io_context io;
  SystemResolver resolver;
  std::optional<Result<std::vector<IpAddress>>> answer;
  boost::asio::co_spawn(io, resolve_into(resolver, answer), boost::asio::detached);
  io.run();

  ASSERT_TRUE(answer && answer->ok());
  EXPECT_FALSE(answer->value().empty());
}

}  // namespace
}  // namespace dsec::edge
