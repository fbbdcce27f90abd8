#include "net/reverse_proxy.h"

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <future>

#include "net/blocking_client.h"
#include "net/http_client.h"
#include "net/http_text.h"
#include "net/net_test_server.h"

namespace dsec::net {
namespace {

sys::Fd connect_to(std::uint16_t port) {
  sys::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

HttpHandler proxy_handler(std::uint16_t upstream, PortAddress address) {
  return [upstream, address](Exchange& exchange) -> asio::awaitable<void> {
    co_await proxy_to(exchange, connect_to(upstream), {.address = address, .target = exchange.request().target, .host = "localhost:8000"});
  };
}

// A server inside that answers every request with the given bytes, then closes.
class RawServer {
 public:
  explicit RawServer(std::string answer) : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
    socklen_t length = sizeof address;
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, answer = std::move(answer)] {
      while (true) {
        const sys::Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!fd) return;
        std::array<char, 65536> part;
        const ssize_t n = ::recv(fd.get(), part.data(), part.size(), 0);
        if (n > 0) seen_.append(part.data(), static_cast<std::size_t>(n));
        (void)::send(fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
      }
    });
  }
  ~RawServer() { stop(); }
  std::string stop() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    return seen_;
  }
  std::uint16_t port() const { return port_; }

 private:
  sys::Fd listener_;
  std::uint16_t port_ = 0;
  std::string seen_;
  std::thread thread_;
};

std::string through_proxy(std::uint16_t upstream, std::string_view request, PortAddress address = PortAddress::kPath) {
  TestServer proxy(proxy_handler(upstream, address));
  RawClient client(proxy.port());
  client.send(request);
  return client.read_to_end();
}

TEST(ReverseProxyTest, NoCredentialOfTheClientArrivesInside) {
  RawServer inside("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");

  const std::string answer = through_proxy(
      inside.port(),
      "GET /a%20b?q=1 HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer secret\r\nx-api-key: secret\r\nCookie: secret\r\nX-Access-Token: secret\r\n"
      "E2b-Traffic-Access-Token: secret\r\nX-Forwarded-For: secret\r\nX-DSEC-Project: secret\r\nProxy-Authorization: secret\r\n"
      "Connection: close, X-Hop\r\nX-Hop: secret\r\nX-Mine: kept\r\n\r\n");
  const std::string seen = inside.stop();

  EXPECT_NE(answer.find("\r\n\r\nok"), std::string::npos) << answer;
  EXPECT_TRUE(seen.starts_with("GET /a%20b?q=1 HTTP/1.1\r\nHost: localhost:8000\r\n")) << seen;
  EXPECT_EQ(seen.find("secret"), std::string::npos) << seen;
  EXPECT_NE(seen.find("X-Mine: kept"), std::string::npos);
}

constexpr std::string_view kOriginAnswer =
    "HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d; Domain=localhost\r\nService-Worker-Allowed: /\r\nAccess-Control-Allow-Origin: *\r\n"
    "Clear-Site-Data: \"*\"\r\nX-Mine: kept\r\nContent-Length: 2\r\n\r\nok";

TEST(ReverseProxyTest, AnswersByPathCannotActOnTheOriginOfTheApi) {
  RawServer inside{std::string(kOriginAnswer)};

  const std::string answer = through_proxy(inside.port(), "GET / HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n");

  for (const char* gone : {"Set-Cookie", "Service-Worker-Allowed", "Access-Control", "Clear-Site-Data"}) EXPECT_EQ(answer.find(gone), std::string::npos) << answer;
  EXPECT_NE(answer.find("Content-Security-Policy: sandbox\r\n"), std::string::npos);
  EXPECT_NE(answer.find("X-Mine: kept"), std::string::npos);
}

TEST(ReverseProxyTest, AnswersByHostKeepTheirOwnCookiesOnly) {
  RawServer inside{std::string(kOriginAnswer)};

  const std::string answer = through_proxy(inside.port(), "GET / HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n", PortAddress::kHost);

  EXPECT_NE(answer.find("Set-Cookie: a=b"), std::string::npos);
  EXPECT_EQ(answer.find("Domain"), std::string::npos);
  EXPECT_EQ(answer.find("Content-Security-Policy"), std::string::npos);
}

TEST(ReverseProxyTest, RefusesABrowsersNavigationByPath) {
  RawServer inside("HTTP/1.1 200 OK\r\n\r\n");

  const std::string answer = through_proxy(inside.port(), "GET / HTTP/1.1\r\nHost: api\r\nSec-Fetch-Mode: navigate\r\nConnection: close\r\n\r\n");

  EXPECT_TRUE(answer.starts_with("HTTP/1.1 403 ")) << answer;
  EXPECT_EQ(inside.stop().find("GET"), std::string::npos);
}

class HostileServerTest : public testing::TestWithParam<std::string> {};
TEST_P(HostileServerTest, IsABadGatewayThatIsNotThePlatformsFault) {
  RawServer inside(GetParam());

  const std::string answer = through_proxy(inside.port(), "GET / HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n");

  EXPECT_TRUE(answer.starts_with("HTTP/1.1 502 ")) << answer.substr(0, 300);
  EXPECT_NE(answer.find("\"infra\":false"), std::string::npos);
}
INSTANTIATE_TEST_SUITE_P(All, HostileServerTest,
                         testing::Values("", "garbage\r\n\r\n", "HTTP/1.1 200 OK\r\nA: " + std::string(1 << 20, 'a'),
                                         "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nGET / HTTP/1.1\r\n",
                                         "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
                                         "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\nab", "SSH-2.0-x\r\n"));

TEST(ReverseProxyTest, AnAnswerThatBreaksOffIsNotMadeWhole) {
  RawServer inside("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");

  const std::string answer = through_proxy(inside.port(), "GET / HTTP/1.1\r\nHost: api\r\n\r\n");

  EXPECT_NE(answer.find("abc"), std::string::npos);
  EXPECT_EQ(answer.find("\r\n0\r\n\r\n"), std::string::npos) << answer;
}

TEST(ReverseProxyTest, ASplitAnswerCannotFollowTheFirst) {
  RawServer inside("HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfalse");

  const std::string answer = through_proxy(inside.port(), "GET / HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n");

  EXPECT_EQ(answer.find("false"), std::string::npos) << answer;
}

TEST(ReverseProxyTest, StreamsBodiesBothWays) {
  TestServer inside([](Exchange& exchange) -> asio::awaitable<void> {
    (void)co_await exchange.begin(200, {});
    std::array<char, 4096> part;
    while (true) {
      const Result<std::size_t> n = co_await exchange.read_some(part);
      if (!n.ok() || *n == 0) break;
      if (!(co_await exchange.write({part.data(), *n})).ok()) co_return;
    }
    (void)co_await exchange.end();
  });
  TestServer proxy(proxy_handler(inside.port(), PortAddress::kPath));
  BlockingClient client(*parse_endpoint("http://127.0.0.1:" + std::to_string(proxy.port())), {});
  constexpr std::size_t kTotal = 8 << 20;
  std::size_t sent = 0;
  std::size_t received = 0;

  const Result<HttpResponse> response = client.stream("POST", "/", {},
                                                      {.next_part = [&]() -> Result<std::string> {
                                                         const std::size_t n = std::min<std::size_t>(100'000, kTotal - sent);
                                                         sent += n;
                                                         return std::string(n, 'x');
                                                       },
                                                       .on_part = [&](std::string_view part) {
                                                         received += part.size();
                                                         return true;
                                                       }});

  ASSERT_TRUE(response.ok()) << response.error().message();
  EXPECT_EQ(response->status, 200);
  EXPECT_EQ(received, kTotal);
}

TEST(ReverseProxyTest, CarriesAWebSocket) {
  TestServer inside([](Exchange& exchange) -> asio::awaitable<void> {
    auto socket = co_await exchange.accept_websocket();
    if (!socket.ok()) co_return;
    while (true) {
      Result<WebSocket::Message> message = co_await (*socket)->read();
      if (!message.ok()) co_return;
      (void)co_await (*socket)->write(message->text, "echo " + message->bytes);
    }
  });
  TestServer proxy(proxy_handler(inside.port(), PortAddress::kPath));
  BlockingClient client(*parse_endpoint("http://127.0.0.1:" + std::to_string(proxy.port())), {});
  std::string first;
  std::size_t second = 0;

  const auto talk = [&]() -> asio::awaitable<Result<void>> {
    DSEC_CO_ASSIGN(const std::unique_ptr<ClientConnection> connection, co_await client.open());
    DSEC_CO_ASSIGN(const std::unique_ptr<WebSocket> socket, co_await connection->websocket("/", client.with_own_headers({})));
    DSEC_CO_TRY(co_await socket->write(true, "hello"));
    DSEC_CO_ASSIGN(WebSocket::Message message, co_await socket->read());
    first = message.bytes;
    DSEC_CO_TRY(co_await socket->write(false, std::string(1'000'000, '\0')));
    DSEC_CO_ASSIGN(message, co_await socket->read());
    second = message.bytes.size();
    co_await socket->close(1000, "done");
    co_return Result<void>{};
  };
  const Result<void> outcome = client.run(talk());

  ASSERT_TRUE(outcome.ok()) << outcome.error().message();
  EXPECT_EQ(first, "echo hello");
  EXPECT_EQ(second, 1'000'005U);
}

TEST(ReverseProxyTest, AClientThatGoesAwayEndsTheCallInside) {
  std::promise<void> arrived;
  std::promise<void> gone;
  TestServer inside([&](Exchange& exchange) -> asio::awaitable<void> {
    arrived.set_value();
    co_await exchange.client_gone();
    gone.set_value();
  });
  TestServer proxy(proxy_handler(inside.port(), PortAddress::kPath));
  {
    RawClient client(proxy.port());
    client.send("GET /think HTTP/1.1\r\nHost: api\r\n\r\n");
    arrived.get_future().wait();
  }
  EXPECT_EQ(gone.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
}

TEST(ReverseProxyTest, AnEarlyAnswerReachesAClientThatStillSends) {
  RawServer inside("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
  TestServer proxy(proxy_handler(inside.port(), PortAddress::kPath));
  RawClient client(proxy.port());

  client.send("POST / HTTP/1.1\r\nHost: api\r\nContent-Length: 100000000\r\n\r\npart");
  const std::string answer = client.read_to_end();

  EXPECT_TRUE(answer.starts_with("HTTP/1.1 403 ")) << answer;
  EXPECT_TRUE(answer.ends_with("no"));
}

TEST(EndpointTest, ReadsAddresses) {
  EXPECT_EQ(parse_endpoint("http://[::1]:7780/x/")->host, "::1");
  EXPECT_EQ(parse_endpoint("http://[::1]:7780/x/")->path_prefix, "/x");
  EXPECT_EQ(parse_endpoint("unix:/run/x.sock")->unix_path, "/run/x.sock");
  EXPECT_EQ(parse_endpoint("localhost:80")->port, 80);
  for (const char* bad : {"http://", "ftp://x", "http://x:70000", "http://x:a", "unix:", "https://x"}) EXPECT_FALSE(parse_endpoint(bad).ok()) << bad;
}

}  // namespace
}  // namespace dsec::net
