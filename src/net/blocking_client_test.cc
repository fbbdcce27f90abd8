#include "net/blocking_client.h"

#include "net/net_test_server.h"

namespace dsec::net {
namespace {

Result<HttpAnswer> ask(RawServer& server, HttpCall call = {.target = "/"}) { return client_of(server.port()).call(call); }

TEST(ServerAddressTest, TakesAddressesApart) {
  const auto plain = parse_server_address("http://[::1]:7780/prefix/").value();
  EXPECT_EQ(plain.host, "::1");
  EXPECT_EQ(plain.authority(), "[::1]:7780");
  EXPECT_EQ(plain.prefix, "/prefix");
  EXPECT_TRUE(parse_server_address("https://host").value().tls);
  for (const char* bad : {"", "host:1", "ftp://x", "http://", "http://a:b", "http://u@h"}) EXPECT_FALSE(parse_server_address(bad).ok()) << bad;
}

TEST(BlockingClientTest, KeepsItsConnectionFromCallToCall) {
  TestServer server([&](Exchange& exchange) -> asio::awaitable<void> {
    Result<std::string> body = co_await exchange.read_body(1000);
    const std::string* own = exchange.request().header("X-Client");
    (void)co_await exchange.respond({.body = exchange.request().method + " " + *body + " " + (own ? *own : "")});
  });
  BlockingClient client = client_of(server.port());

  const auto first = client.call({.method = "POST", .target = "/a", .body = "one"});
  const auto second = client.call({.method = "DELETE", .target = "/b"});
  const auto third = client.call({.method = "HEAD", .target = "/c"});

  ASSERT_TRUE(first.ok() && second.ok() && third.ok());
  EXPECT_EQ(first->body, "POST one test");
  EXPECT_EQ(second->body, "DELETE  test");
  EXPECT_EQ(third->body, "");
  EXPECT_EQ(server.server->connections(), 1U);
}

TEST(BlockingClientTest, ReplacesAKeptConnectionThatTheServerHasClosed) {
  RawServer server("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1");
  BlockingClient client = client_of(server.port());

  const auto first = client.call({.target = "/"});
  const auto second = client.call({.target = "/"});

  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(second.ok()) << second.error().message();
  EXPECT_EQ(server.connections(), 2);
}

TEST(BlockingClientTest, SendsWhatMayNotBeRepeatedOnce) {
  // Answers the first request of a connection and goes away at the second.
  TestServer server([calls = 0](Exchange& exchange) mutable -> asio::awaitable<void> {
    if (++calls % 2 == 0)
      (void)co_await exchange.take_connection();
    else
      (void)co_await exchange.respond({.body = std::to_string(calls)});
  });
  BlockingClient client = client_of(server.port());
  ASSERT_TRUE(client.call({.target = "/"}).ok());

  const auto lost = client.call({.method = "POST", .target = "/", .body = "x"});
  const auto next = client.call({.target = "/"});

  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.error().code(), ErrorCode::kUnavailable);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->body, "3");
}

TEST(BlockingClientTest, TakesEveryFramingOfAnAnswer) {
  const struct {
    std::string bytes;
    int status;
    std::string body;
  } rows[] = {{"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", 200, "abc"},
              {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\nTrailer: t\r\n\r\n", 200, "abc"},
              {"HTTP/1.1 200 OK\r\n\r\nabc", 200, "abc"},
              {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 3\r\n\r\nabc", 201, "abc"},
              {"HTTP/1.1 204 No Content\r\n\r\n", 204, ""}};
  for (const auto& row : rows) {
    RawServer server(row.bytes);
    const auto answer = ask(server);
    ASSERT_TRUE(answer.ok()) << row.bytes << answer.error().message();
    EXPECT_EQ(answer->status, row.status);
    EXPECT_EQ(answer->body, row.body);
  }
}

TEST(BlockingClientTest, SaysWhatIsNoAnswer) {
  for (const std::string& bytes :
       {std::string("SSH-2.0-x\r\n"), std::string("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"), std::string("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"),
        std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), std::string("HTTP/1.1 200 OK\r\nX: ") + std::string(300 << 10, 'a'),
        std::string("")}) {
    RawServer server(bytes);
    const auto answer = ask(server);
    ASSERT_FALSE(answer.ok()) << bytes.substr(0, 60);
    EXPECT_EQ(answer.error().code(), ErrorCode::kUnavailable) << answer.error().message();
  }
}

TEST(BlockingClientTest, GivesUpOnASilentServer) {
  RawServer server("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", RawServer::Then::kStay);

  const auto answer = ask(server, {.target = "/", .timeout = std::chrono::milliseconds(100)});

  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code(), ErrorCode::kDeadlineExceeded);
}

// Each byte would keep a call without an end of its own alive.
TEST(BlockingClientTest, GivesUpAtTheDeadlineOnAServerThatDribbles) {
  std::atomic<bool> left = false;
  TestServer server([&left](Exchange& exchange) -> asio::awaitable<void> {
    (void)co_await exchange.begin(200, {});
    while (!left && (co_await exchange.write("x")).ok()) {
    }
  });

  const auto answer = client_of(server.port()).call({.target = "/", .deadline = Deadline::in(std::chrono::milliseconds(100))}, [](std::string_view) { return Result<void>(); });
  left = true;

  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code(), ErrorCode::kDeadlineExceeded);
}

TEST(BlockingClientTest, StreamsBothWaysAtTheSameTime) {
  TestServer server(echo_body);

  const Result<std::size_t> received = upload(client_of(server.port()), 32 << 20);

  ASSERT_TRUE(received.ok()) << received.error().message();
  EXPECT_EQ(*received, 32U << 20);
}

TEST(BlockingClientTest, ARefusalEndsAnUploadThatNobodyReads) {
  RawServer server("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", RawServer::Then::kStay);
  HttpCall call{.method = "PUT", .target = "/"};
  call.body_source = []() -> Result<std::string> { return std::string(1 << 20, 'x'); };  // without end

  const auto answer = ask(server, call);

  ASSERT_TRUE(answer.ok()) << answer.error().message();
  EXPECT_EQ(answer->status, 403);
  EXPECT_EQ(answer->body, "no");
}

TEST(BlockingClientTest, ErrorsOfSourceAndSinkAreTheCalls) {
  TestServer server(echo_body);  // answers nobody before a body has come: an early answer would end the upload unread
  HttpCall call{.method = "PUT", .target = "/"};
  call.body_source = []() -> Result<std::string> { return Error(ErrorCode::kDataFault, "the disk is bad"); };
  RawServer answering("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc");

  const auto unread = client_of(server.port()).call(call, [](std::string_view) { return Result<void>(); });
  const auto untaken = client_of(answering.port()).call({.target = "/"}, [](std::string_view) -> Result<void> { return errno_error("write", EPIPE); });

  ASSERT_FALSE(unread.ok());
  EXPECT_EQ(unread.error().code(), ErrorCode::kDataFault);
  ASSERT_FALSE(untaken.ok());
  EXPECT_EQ(untaken.error().error_number(), EPIPE);
}

TEST(BlockingClientTest, AWebSocketCarriesMessagesOfEverySize) {
  TestServer server([](Exchange& exchange) -> asio::awaitable<void> {
    auto socket = co_await exchange.accept_websocket();
    if (!socket.ok()) co_return;
    while (true) {
      Result<WebSocket::Message> message = co_await (*socket)->read();
      if (!message.ok()) co_return;
      (void)co_await (*socket)->write(message->text, message->bytes);
    }
  });
  auto socket = client_of(server.port()).websocket("/");
  ASSERT_TRUE(socket.ok()) << socket.error().message();

  for (const std::size_t size : {0U, 1U, 125U, 126U, 65535U, 65536U, 1U << 20}) {
    socket->send(false, std::string(size, 'b'));
    const auto back = socket->wait(soon());
    ASSERT_TRUE(back.ok()) << size << back.error().message();
    EXPECT_EQ(back->bytes, std::string(size, 'b'));
  }
  socket->close();

  EXPECT_EQ(socket->wait(soon()).error().code(), ErrorCode::kCancelled);
}

TEST(BlockingClientTest, ARefusedWebSocketIsTheServersError) {
  TestServer server([](Exchange& exchange) -> asio::awaitable<void> {
    (void)co_await exchange.respond(error_response(Error(ErrorCode::kNotFound, "no such sandbox")));
  });

  const auto socket = client_of(server.port()).websocket("/");

  ASSERT_FALSE(socket.ok());
  EXPECT_EQ(socket.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(socket.error().message(), "no such sandbox");
}

}  // namespace
}  // namespace dsec::net
