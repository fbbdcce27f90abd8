#include "net/reverse_proxy.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <memory>
#include <vector>

#include "net/http_text.h"
#include "net/stream_socket.h"
#include "net/upstream_connection.h"

namespace dsec::net {

namespace {
constexpr std::size_t kPart = 64 << 10;

asio::awaitable<void> answer_bad_gateway(Exchange& exchange, const Error& error) {
  if (exchange.answered()) co_return;
  const Error shown(ErrorCode::kUnavailable, "the server behind this port: " + error.message());
  (void)co_await exchange.respond(error_response(shown, {.status = 502, .infra = false}));
}

// One request in flight. The two directions run beside each other: a server may
// answer before it has read all, and a client may go before it has sent all.
struct Flight {
  explicit Flight(const asio::any_io_executor& executor) : client_side_over(executor) {
    client_side_over.expires_at(asio::steady_timer::time_point::max());
  }

  std::unique_ptr<UpstreamConnection> upstream;
  asio::cancellation_signal stop;       // of the coroutine that follows the client
  asio::steady_timer client_side_over;  // cancelled when that coroutine has ended
  bool following_client = false;
};

// Carries the body inwards, then notices a client that goes away while the
// server inside thinks.
asio::awaitable<void> follow_client(Exchange& exchange, std::shared_ptr<Flight> flight, bool has_body) {
  std::vector<char> part(has_body ? kPart : 0);
  while (has_body) {
    const Result<std::size_t> n = co_await exchange.read_some(part);
    if (!n.ok()) {
      // The client broke off: the server inside must not take half a body for a whole.
      flight->upstream->abort();
      co_return;
    }
    const Result<void> sent = *n == 0 ? co_await flight->upstream->end_body() : co_await flight->upstream->write_body({part.data(), *n});
    // A server that takes no more may still answer: its answer decides.
    if (!sent.ok()) co_return;
    has_body = *n > 0;
  }
  co_await exchange.client_gone();
  // Also when we were told to stop; then the answer has been read.
  flight->upstream->abort();
}

asio::awaitable<Result<void>> forward_answer(Exchange& exchange, Flight& flight, const ResponseHead& head, PortAddress address) {
  HeaderList headers = headers_out_of_sandbox(head.headers, address);
  // The answer to HEAD keeps the length that it tells of.
  DSEC_CO_TRY(co_await exchange.begin(head.status, std::move(headers), head.content_length));
  if (exchange.request().method != "HEAD" && head.status != 204 && head.status != 304) {
    std::vector<char> part(kPart);
    while (true) {
      DSEC_CO_ASSIGN(const std::size_t n, co_await flight.upstream->read_some(part));
      if (n == 0) break;
      DSEC_CO_TRY(co_await exchange.write({part.data(), n}));
    }
  }
  co_return co_await exchange.end();
}

asio::awaitable<void> forward_upgrade(Exchange& exchange, Flight& flight, const ResponseHead& head, PortAddress address) {
  const std::string* protocol = head.header("Upgrade");
  std::string text = status_line(101);
  append_header(text, "Connection", "Upgrade");
  append_header(text, "Upgrade", protocol ? *protocol : "");
  for (const auto& [name, value] : headers_out_of_sandbox(head.headers, address)) append_header(text, name, value);
  text.append("\r\n");
  Result<Exchange::RawConnection> client = co_await exchange.take_connection();
  if (!client.ok()) co_return;
  Exchange::RawConnection upstream = flight.upstream->take();
  co_await tunnel(std::move(client->fd), std::move(client->already_read), std::move(upstream.fd), text + upstream.already_read);
}

struct Tunnel {
  Socket client;
  Socket upstream;
  asio::steady_timer done;
  int open = 2;
  void close() {
    boost::system::error_code ignored;
    client.close(ignored);
    upstream.close(ignored);
  }
};

asio::awaitable<void> copy(std::shared_ptr<Tunnel> tunnel, Socket& from, Socket& to, std::string first) {
  std::vector<char> part(kPart);
  Result<void> written = co_await write_all(to, first);
  while (written.ok()) {
    const Result<std::size_t> n = co_await read_available(from, part);
    if (!n.ok()) break;
    if (*n == 0) {
      // A half-closed connection still carries the other direction.
      boost::system::error_code ignored;
      to.shutdown(Socket::shutdown_send, ignored);
      --tunnel->open;
      tunnel->done.cancel();
      co_return;
    }
    written = co_await write_all(to, {part.data(), *n});
  }
  tunnel->close();
  --tunnel->open;
  tunnel->done.cancel();
}
}  // namespace

asio::awaitable<void> tunnel(sys::Fd client, std::string first_up, sys::Fd upstream, std::string first_down) {
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  set_keep_alive(client.get());
  Result<Socket> client_socket = adopt_socket(executor, std::move(client));
  Result<Socket> upstream_socket = adopt_socket(executor, std::move(upstream));
  if (!client_socket.ok() || !upstream_socket.ok()) co_return;
  const auto shared = std::make_shared<Tunnel>(Tunnel{*std::move(client_socket), *std::move(upstream_socket), asio::steady_timer(executor)});
  shared->done.expires_at(asio::steady_timer::time_point::max());
  asio::co_spawn(executor, copy(shared, shared->client, shared->upstream, std::move(first_up)), asio::detached);
  asio::co_spawn(executor, copy(shared, shared->upstream, shared->client, std::move(first_down)), asio::detached);
  while (shared->open > 0) co_await shared->done.async_wait(asio::as_tuple(asio::use_awaitable));
}

asio::awaitable<void> proxy_to(Exchange& exchange, sys::Fd upstream, ProxyOptions options) {
  const HttpRequest& request = exchange.request();
  if (const Result<void> allowed = check_port_request(request, options.address); !allowed.ok()) {
    (void)co_await exchange.respond(error_response(allowed.error()));
    co_return;
  }
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  const auto flight = std::make_shared<Flight>(executor);
  Result<std::unique_ptr<UpstreamConnection>> adopted = co_await UpstreamConnection::adopt(std::move(upstream));
  if (!adopted.ok()) co_return co_await answer_bad_gateway(exchange, adopted.error());
  flight->upstream = *std::move(adopted);

  RequestHead onward{.method = request.method, .target = options.target, .headers = headers_into_sandbox(request, options.host)};
  const std::optional<std::uint64_t> length = exchange.content_length();
  onward.framing = !length ? BodyFraming::kChunked : *length > 0 || request.header("Content-Length") ? BodyFraming::kLength : BodyFraming::kNone;
  onward.length = length.value_or(0);
  onward.upgrade = request.upgrade;
  if (request.upgrade) onward.headers.emplace_back("Upgrade", *request.header("Upgrade"));
  if (const Result<void> sent = co_await flight->upstream->send_head(std::move(onward)); !sent.ok())
    co_return co_await answer_bad_gateway(exchange, sent.error());
  const bool has_body = !length || *length > 0;
  if (!request.upgrade || has_body) {
    flight->following_client = true;
    asio::co_spawn(executor, follow_client(exchange, flight, has_body),
                   asio::bind_cancellation_slot(flight->stop.slot(), [flight](std::exception_ptr) {
                     flight->following_client = false;
                     flight->client_side_over.cancel();
                   }));
  }

  asio::steady_timer limit(executor, options.head_timeout);
  // The handler may run late, when this coroutine is over: it holds the flight.
  const auto late = std::make_shared<bool>(false);
  limit.async_wait([flight, late](const boost::system::error_code& cancelled) {
    if (cancelled) return;
    *late = true;
    flight->upstream->abort();
  });
  Result<ResponseHead> head = co_await flight->upstream->read_head();
  limit.cancel();

  if (!head.ok()) {
    co_await answer_bad_gateway(exchange, *late ? Error(ErrorCode::kDeadlineExceeded, "no answer in time") : head.error());
  } else if (head->status == 101) {
    if (!request.upgrade || has_body)
      co_await answer_bad_gateway(exchange, invalid_argument("an upgrade that nobody asked for"));
    else
      co_await forward_upgrade(exchange, *flight, *head, options.address);
  } else {
    // An answer that breaks off is passed on as such: the exchange closes the connection.
    (void)co_await forward_answer(exchange, *flight, *head, options.address);
  }
  // It refers to the exchange, which ends with us.
  if (flight->following_client) flight->stop.emit(asio::cancellation_type::terminal);
  while (flight->following_client) co_await flight->client_side_over.async_wait(asio::as_tuple(asio::use_awaitable));
}

}  // namespace dsec::net
