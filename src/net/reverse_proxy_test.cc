#include "net/reverse_proxy.h"

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <future>

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
  TestServer inside(echo_body);
  TestServer proxy(proxy_handler(inside.port(), PortAddress::kPath));

  const Result<std::size_t> received = upload(client_of(proxy.port()), 8 << 20);

  ASSERT_TRUE(received.ok()) << received.error().message();
  EXPECT_EQ(*received, 8U << 20);
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
  BlockingClient client = client_of(proxy.port());

  auto socket = client.websocket("/");
  ASSERT_TRUE(socket.ok()) << socket.error().message();
  socket->send(true, "hello");
  const auto first = socket->wait(soon());
  socket->send(false, std::string(1'000'000, '\0'));
  const auto second = socket->wait(soon());

  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->bytes, "echo hello");
  EXPECT_EQ(second->bytes.size(), 1'000'005U);
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

}  // namespace
}  // namespace dsec::net
