#include "net/http_server.h"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <future>

#include "net/http_text.h"
#include "net/net_test_server.h"

namespace dsec::net {
namespace {

using testing::Test;

// "METHOD path [body]" as the answer; reads a body of at most 1,000 bytes.
asio::awaitable<void> echo(Exchange& exchange) {
  Result<std::string> body = co_await exchange.read_body(1000);
  if (!body.ok()) {
    (void)co_await exchange.respond(error_response(body.error()));
    co_return;
  }
  (void)co_await exchange.respond({.headers = {{"X-Bad", "a\r\nInjected: 1"}}, .body = exchange.request().method + " " + exchange.request().path + " [" + *body + "]"});
}

std::string answer_to(std::uint16_t port, std::string_view request) {
  RawClient client(port);
  client.send(request);
  client.finish_sending();
  return client.read_to_end();
}

TEST(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  TestServer server(echo);
  RawClient client(server.port());

  client.send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcGET /b%20c?x=1 HTTP/1.1\r\nHost: x\r\n\r\n"
              "POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nde\r\n3;ext=1\r\nfgh\r\n0\r\n\r\n"
              "GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string all = client.read_to_end();

  const std::size_t a = all.find("POST /a [abc]");
  const std::size_t b = all.find("GET /b c []");
  const std::size_t c = all.find("POST /c [defgh]");
  const std::size_t last = all.find("GET /last []");
  EXPECT_TRUE(a < b && b < c && c < last && last != std::string::npos) << all;
  EXPECT_NE(all.find("Connection: close"), std::string::npos);
}

TEST(HttpServerTest, TakesARequestThatComesByteByByte) {
  TestServer server(echo);
  RawClient client(server.port());

  for (const char c : std::string_view("POST /slow HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n4\r\nabcd\r\n0\r\n\r\n"))
    client.send(std::string_view(&c, 1));

  EXPECT_NE(client.read_to_end().find("POST /slow [abcd]"), std::string::npos);
}

struct MalformedCase {
  const char* request;
  const char* status;
};
class MalformedRequestTest : public testing::TestWithParam<MalformedCase> {};

TEST_P(MalformedRequestTest, IsAnsweredWithAJsonErrorAndClosed) {
  TestServer server(echo);

  const std::string answer = answer_to(server.port(), GetParam().request);

  EXPECT_TRUE(answer.starts_with(std::string("HTTP/1.1 ") + GetParam().status)) << answer;
  EXPECT_NE(answer.find("{\"error\":{\"code\":"), std::string::npos) << answer;
  EXPECT_NE(answer.find("Connection: close"), std::string::npos) << answer;
}

INSTANTIATE_TEST_SUITE_P(All, MalformedRequestTest,
                         testing::Values(MalformedCase{"nonsense\r\n\r\n", "400"}, MalformedCase{"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
                                         MalformedCase{"GET / HTTP/1.1\r\n\r\n", "400"},                          // no Host
                                         MalformedCase{"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"},    // two
                                         MalformedCase{"GET / HTTP/2.0\r\nHost: x\r\n\r\n", "400"},
                                         MalformedCase{"GET / HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n", "400"},
                                         MalformedCase{"GET / HTTP/1.1\r\nHost: x\r\nA : c\r\n\r\n", "400"},
                                         MalformedCase{"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
                                         MalformedCase{"GET relative HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
                                         MalformedCase{"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", "400"},
                                         MalformedCase{"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "400"},
                                         // Smuggling: two framings, an unknown coding, chunked that is not last.
                                         MalformedCase{"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
                                         MalformedCase{"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", "400"},
                                         MalformedCase{"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", "501"},
                                         MalformedCase{"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, gzip\r\n\r\n", "501"},
                                         MalformedCase{"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "501"},
                                         MalformedCase{"POST / HTTP/1.1\r\nHost: x\r\nExpect: magic\r\n\r\n", "400"}));

TEST(HttpServerTest, RefusesAHeaderThatIsTooLarge) {
  TestServer server(echo, {.max_header_bytes = 4096});

  const std::string answer = answer_to(server.port(), "GET / HTTP/1.1\r\nHost: x\r\nA: " + std::string(1 << 20, 'a') + "\r\n\r\n");

  EXPECT_TRUE(answer.starts_with("HTTP/1.1 431 ")) << answer.substr(0, 200);
}

TEST(HttpServerTest, RefusesABodyThatIsTooLargeWithoutReadingIt) {
  TestServer server(echo);

  const std::string declared = answer_to(server.port(), "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\nabc");
  const std::string chunked = answer_to(server.port(), "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + std::string(2000, 'a') + "\r\n0\r\n\r\n");

  EXPECT_TRUE(declared.starts_with("HTTP/1.1 413 ")) << declared;
  EXPECT_TRUE(chunked.starts_with("HTTP/1.1 413 ")) << chunked;
}

TEST(HttpServerTest, ChunksThatAreBrokenEndTheConnection) {
  TestServer server(echo);

  const std::string answer = answer_to(server.port(), "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc");

  EXPECT_TRUE(answer.empty() || answer.starts_with("HTTP/1.1 400 ")) << answer;
}

TEST(HttpServerTest, SendsContinueOnlyWhenTheBodyIsWanted) {
  TestServer server(echo);
  RawClient wanted(server.port());
  wanted.send("POST /w HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_TRUE(wanted.read_until("\r\n\r\n").starts_with("HTTP/1.1 100 "));
  wanted.send("ok");
  EXPECT_NE(wanted.read_until("[ok]").find("200 OK"), std::string::npos);

  RawClient refused(server.port());
  refused.send("POST /r HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2000000\r\n\r\n");
  EXPECT_TRUE(refused.read_to_end().starts_with("HTTP/1.1 413 "));
}

TEST(HttpServerTest, AnswersHeadWithoutABodyAndKeepsTheConnection) {
  TestServer server(echo);
  RawClient client(server.port());

  client.send("HEAD /h HTTP/1.1\r\nHost: x\r\n\r\nGET /next HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string all = client.read_until("/next []");

  EXPECT_EQ(all.find("HEAD /h"), std::string::npos);
  EXPECT_NE(all.find("Content-Length: 10"), std::string::npos);
}

TEST(HttpServerTest, AHeaderValueCannotStartAnotherHeader) {
  TestServer server(echo);

  const std::string answer = answer_to(server.port(), "GET / HTTP/1.0\r\n\r\n");

  EXPECT_EQ(answer.find("\r\nInjected"), std::string::npos) << answer;
}

TEST(HttpServerTest, ClosesSlowHeadersAndIdleConnections) {
  TestServer server(echo, {.header_timeout = std::chrono::milliseconds(150), .idle_timeout = std::chrono::milliseconds(150)});
  RawClient slow(server.port());
  slow.send("GET / HTTP/1.1\r\nHost: ");
  RawClient idle(server.port());

  EXPECT_TRUE(slow.read_to_end().starts_with("HTTP/1.1 408 "));
  EXPECT_EQ(idle.read_to_end(), "");
  EXPECT_TRUE(idle.closed);
}

TEST(HttpServerTest, RefusesConnectionsBeyondItsLimit) {
  TestServer server(echo, {.max_connections = 1});
  RawClient first(server.port());
  first.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n");
  first.read_until("/1 []");

  RawClient second(server.port());
  const std::string answer = second.read_to_end();

  EXPECT_TRUE(answer.starts_with("HTTP/1.1 429 ")) << answer;
  const std::size_t body = answer.find("\r\n\r\n") + 4;
  EXPECT_NE(answer.find("Content-Length: " + std::to_string(answer.size() - body) + "\r\n"), std::string::npos);
}

TEST(HttpServerTest, ASlowReaderHoldsTheWriterNotTheMemory) {
  std::atomic<std::size_t> written{0};
  TestServer server([&](Exchange& exchange) -> asio::awaitable<void> {
    (void)co_await exchange.begin(200, {});
    const std::string part(64 << 10, 'x');
    for (int i = 0; i < 4096; ++i) {
      if (!(co_await exchange.write(part)).ok()) co_return;
      written += part.size();
    }
    (void)co_await exchange.end();
  });
  {
    RawClient client(server.port(), 4096);
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    client.read_until("\r\n\r\n");

    // Another client is served meanwhile, and by then the first one's writer stands.
    RawClient other(server.port());
    other.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    other.read_until("xxxx");
    EXPECT_LT(written.load(), std::size_t{128} << 20);
  }
}

TEST(HttpServerTest, TellsTheHandlerThatTheClientIsGone) {
  std::promise<void> gone;
  TestServer server([&](Exchange& exchange) -> asio::awaitable<void> {
    co_await exchange.client_gone();
    gone.set_value();
  });
  {
    RawClient client(server.port());
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  EXPECT_EQ(gone.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
}

TEST(HttpServerTest, APipelinedRequestIsNotAClientThatIsGone) {
  using namespace asio::experimental::awaitable_operators;
  TestServer server([&](Exchange& exchange) -> asio::awaitable<void> {
    asio::steady_timer timer(co_await asio::this_coro::executor, std::chrono::milliseconds(50));
    const auto first = co_await (exchange.client_gone() || timer.async_wait(asio::use_awaitable));
    (void)co_await exchange.respond({.body = exchange.request().path + (first.index() == 0 ? " gone" : " here")});
  });
  RawClient client(server.port());

  client.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string all = client.read_until("/2 ");

  EXPECT_NE(all.find("/1 here"), std::string::npos) << all;
  EXPECT_NE(all.find("/2 here"), std::string::npos) << all;
}

TEST(HttpServerTest, DrainLetsTheRequestInProgressFinish) {
  std::promise<void> started;
  TestServer server([&](Exchange& exchange) -> asio::awaitable<void> {
    asio::steady_timer timer(co_await asio::this_coro::executor, std::chrono::milliseconds(100));
    started.set_value();
    co_await timer.async_wait(asio::use_awaitable);
    (void)co_await exchange.respond({.body = "finished"});
  });
  RawClient idle(server.port());
  RawClient busy(server.port());
  busy.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  started.get_future().wait();

  server.loop.run(server.server->drain(Deadline::in(std::chrono::seconds(5))));

  EXPECT_NE(busy.read_to_end().find("finished"), std::string::npos);
  EXPECT_EQ(idle.read_to_end(), "");
}

TEST(HttpServerTest, HandsOverTheConnectionWithWhatWasRead) {
  std::promise<std::string> taken;
  TestServer server([&](Exchange& exchange) -> asio::awaitable<void> {
    auto raw = co_await exchange.take_connection();
    taken.set_value(raw.ok() && raw->fd.valid() ? raw->already_read : "error");
  });
  RawClient client(server.port());

  client.send("CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\nhello");

  EXPECT_EQ(taken.get_future().get(), "hello");
}

TEST(HttpTextTest, SplitsATargetIntoDecodedSegments) {
  HttpRequest request{.method = "GET", .target = "/v1/a%2Fb//c/?x=1&y=a+b%26&z"};

  ASSERT_TRUE(parse_target(request).ok());

  EXPECT_EQ(request.segments, (std::vector<std::string>{"v1", "a/b", "", "c"}));
  EXPECT_EQ(*request.parameter("y"), "a b&");
  EXPECT_EQ(*request.parameter("z"), "");
  EXPECT_EQ(request.parameter("w"), nullptr);
}

}  // namespace
}  // namespace dsec::net
