// One connection of a sandbox to its HTTP proxy port.
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "edge/egress_http.h"
#include "edge/egress_session.h"

namespace dsec::edge {
namespace {

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t kBuffer = 16 << 10;
// What is read and thrown away after an answer that ends the connection, so
// that the answer is not lost in a reset.
constexpr std::size_t kMaxDrained = 256 << 10;
constexpr auto kDrainTime = std::chrono::seconds(2);
constexpr std::size_t kMaxEarlyAnswers = 16;

Instant in(Duration time) { return std::chrono::steady_clock::now() + time; }

asio::awaitable<bool> write(tcp::socket& socket, std::string bytes) {
  const auto [failed, written] = co_await asio::async_write(socket, asio::buffer(bytes), kTuple);
  static_cast<void>(written);
  co_return !failed;
}

// Reads on until `buffer` begins with a whole head, and takes it out. Nothing
// when the peer closed; an error when the head is too long.
asio::awaitable<Result<std::optional<std::string>>> read_head(tcp::socket& socket, std::string& buffer, std::size_t limit) {
  std::size_t searched = 0;
  for (;;) {
    const std::size_t end = buffer.find("\r\n\r\n", searched);
    if (end != std::string::npos && end + 4 <= limit) {
      std::string head = buffer.substr(0, end + 4);
      buffer.erase(0, end + 4);
      co_return std::optional<std::string>(std::move(head));
    }
    if (buffer.size() >= limit) co_return Error(ErrorCode::kTooLarge, "the head is longer than " + std::to_string(limit) + " bytes");
    searched = buffer.size() < 3 ? 0 : buffer.size() - 3;
    const std::size_t before = buffer.size();
    buffer.resize(before + 4096);
    const auto [ended, size] = co_await socket.async_read_some(asio::buffer(buffer.data() + before, 4096), kTuple);
    buffer.resize(before + size);
    if (ended) co_return std::optional<std::string>();
  }
}

enum class Relay { kWhole, kSourceBroke, kSinkBroke };

// Passes a body on, byte for byte. `buffer` holds what was read already and, in
// the end, what lies behind the body.
asio::awaitable<Relay> relay_body(SessionPtr session, FlowPtr flow, HttpFraming framing, tcp::socket& from, std::string& buffer, tcp::socket& to,
                                  std::uint64_t& count) {
  if (framing.kind == HttpFraming::Kind::kNone) co_return Relay::kWhole;
  ChunkScanner scanner;
  std::uint64_t left = framing.length;
  for (;;) {
    std::size_t part = buffer.size();
    bool whole = false;
    if (framing.kind == HttpFraming::Kind::kLength) {
      part = static_cast<std::size_t>(std::min<std::uint64_t>(left, part));
      left -= part;
      whole = left == 0;
    } else if (framing.kind == HttpFraming::Kind::kChunked) {
      part = scanner.feed(buffer);
      if (scanner.broken()) co_return Relay::kSourceBroke;
      whole = scanner.done();
    }
    if (part > 0) {
      const auto [failed, written] = co_await asio::async_write(to, asio::buffer(buffer.data(), part), kTuple);
      count += written;
      if (failed) co_return Relay::kSinkBroke;
      buffer.erase(0, part);
      flow->set_deadline(in(session->options.idle_timeout));
    }
    if (whole) co_return Relay::kWhole;
    buffer.resize(kBuffer);
    const auto [ended, size] = co_await from.async_read_some(asio::buffer(buffer), kTuple);
    buffer.resize(size);
    if (ended) co_return ended == asio::error::eof && framing.kind == HttpFraming::Kind::kUntilClose ? Relay::kWhole : Relay::kSourceBroke;
  }
}

// Answers with an error of the proxy itself and ends the connection in order.
asio::awaitable<void> refuse(FlowPtr flow, const Error error, bool head_method) {
  int status = 502;
  std::string reason = "Bad Gateway";
  switch (error.code()) {
    case ErrorCode::kPermissionDenied: status = 403, reason = "Forbidden"; break;
    case ErrorCode::kInvalidArgument: status = 400, reason = "Bad Request"; break;
    case ErrorCode::kTooLarge: status = 431, reason = "Request Header Fields Too Large"; break;
    case ErrorCode::kUnsupported: status = 501, reason = "Not Implemented"; break;
    case ErrorCode::kExhausted: status = 503, reason = "Service Unavailable"; break;
    case ErrorCode::kDeadlineExceeded: status = 504, reason = "Gateway Timeout"; break;
    default: break;
  }
  const std::string body = "dsec egress: " + error.message() + "\n";
  flow->set_deadline(in(kDrainTime));
  if (!co_await write(flow->client, "HTTP/1.1 " + std::to_string(status) + " " + reason + "\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: " +
                                        std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + (head_method ? "" : body)))
    co_return;
  boost::system::error_code ignored;
  flow->client.shutdown(tcp::socket::shutdown_send, ignored);
  std::vector<char> scrap(4096);
  for (std::size_t drained = 0; drained < kMaxDrained;) {
    const auto [ended, size] = co_await flow->client.async_read_some(asio::buffer(scrap), kTuple);
    if (ended) break;
    drained += size;
  }
}

struct Transfer {
  std::string client_buffer;
  bool uploaded = false;   // the whole request is upstream
  bool answered = false;   // the client has got a head
  bool keep_alive = false;
};

asio::awaitable<bool> upload(SessionPtr session, FlowPtr flow, const ProxyRequest& request, Transfer& transfer) {
  const Relay relay = co_await relay_body(session, flow, request.body, flow->client, transfer.client_buffer, flow->upstream, flow->sent);
  transfer.uploaded = relay == Relay::kWhole;
  // The client broke off within its request. When it is the server that takes
  // no more, its answer may still come.
  if (relay == Relay::kSourceBroke && !flow->over) {
    boost::system::error_code ignored;
    flow->upstream.close(ignored);
  }
  co_return true;
}

asio::awaitable<bool> download(SessionPtr session, FlowPtr flow, const ProxyRequest& request, Transfer& transfer) {
  std::string buffer;
  for (std::size_t early = 0; early < kMaxEarlyAnswers; ++early) {
    Result<std::optional<std::string>> head = co_await read_head(flow->upstream, buffer, session->options.max_header_bytes);
    if (!head.ok() || !*head) break;
    Result<ProxyResponse> response = parse_proxy_response(**head, request.method);
    if (!response.ok() || response->status == 101) break;
    if (response->status < 200) continue;  // 100 was answered here
    transfer.keep_alive = request.keep_alive && response->body.kind != HttpFraming::Kind::kUntilClose;
    transfer.answered = true;
    flow->received += (*head)->size();
    if (!co_await write(flow->client, client_head(*response, transfer.keep_alive, request.http_1_0))) {
      transfer.keep_alive = false;
      break;
    }
    const Relay relay = co_await relay_body(session, flow, response->body, flow->upstream, buffer, flow->client, flow->received);
    if (relay != Relay::kWhole) transfer.keep_alive = false;
    break;
  }
  if (!transfer.uploaded) {
    // The answer came before the end of the request: the rest is not wanted.
    transfer.keep_alive = false;
    boost::system::error_code ignored;
    flow->client.cancel(ignored);
    flow->upstream.close(ignored);
  }
  co_return true;
}

// One request with its answer. False: the connection is over.
asio::awaitable<bool> forward(SessionPtr session, FlowPtr flow, ProxyRequest request, std::string& buffer) {
  using namespace asio::experimental::awaitable_operators;
  const TargetForm form = flow->decision.via.empty() ? TargetForm::kOrigin : TargetForm::kAbsolute;
  const std::string head = upstream_head(request, form);
  if (!co_await write(flow->upstream, head)) {
    co_await refuse(flow, Error(ErrorCode::kUnavailable, "the server closed the connection"), request.method == "HEAD");
    co_return false;
  }
  flow->sent += head.size();
  if (request.expects_continue && buffer.empty() && !co_await write(flow->client, "HTTP/1.1 100 Continue\r\n\r\n")) co_return false;
  Transfer transfer{.client_buffer = std::move(buffer)};
  co_await (upload(session, flow, request, transfer) && download(session, flow, request, transfer));
  session->close_upstream(*flow);
  buffer = std::move(transfer.client_buffer);
  if (flow->over) co_return false;
  if (!transfer.answered) {
    co_await refuse(flow, Error(ErrorCode::kUnavailable, "no answer that can be read came from the server"), request.method == "HEAD");
    co_return false;
  }
  co_return transfer.keep_alive;
}

// Asks the parent proxy for the tunnel. What it sent behind its answer comes back.
asio::awaitable<Result<std::string>> connect_through_parent(SessionPtr session, FlowPtr flow, Destination destination) {
  const std::string target = authority(destination, 0);
  std::string buffer;
  if (!co_await write(flow->upstream, "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n\r\n"))
    co_return Error(ErrorCode::kUnavailable, "the parent proxy closed the connection");
  flow->set_deadline(in(session->options.header_timeout));
  DSEC_CO_ASSIGN(std::optional<std::string> head, co_await read_head(flow->upstream, buffer, session->options.max_header_bytes));
  if (!head) co_return Error(ErrorCode::kUnavailable, "the parent proxy closed the connection");
  DSEC_CO_ASSIGN(const ProxyResponse response, parse_proxy_response(*head, "CONNECT"));
  if (response.status / 100 != 2) co_return Error(ErrorCode::kUnavailable, "the parent proxy answered " + std::to_string(response.status));
  co_return buffer;
}

asio::awaitable<void> serve_connect(SessionPtr session, FlowPtr flow, Destination destination, std::string buffer) {
  std::string received;
  if (!flow->decision.via.empty()) {
    Result<std::string> connected = co_await connect_through_parent(session, flow, destination);
    if (flow->over) co_return;
    if (!connected.ok()) {
      co_await refuse(flow, Error(ErrorCode::kUnavailable, connected.error().message()), false);
      co_return;
    }
    received = *std::move(connected);
    flow->set_deadline(in(session->options.idle_timeout));
  }
  if (!co_await write(flow->client, "HTTP/1.1 200 Connection established\r\n\r\n")) co_return;
  co_await run_tunnel(session, flow, std::move(buffer), std::move(received));
}

}  // namespace

asio::awaitable<void> serve_http(SessionPtr session, FlowPtr flow) {
  boost::system::error_code ignored;
  flow->client.set_option(tcp::no_delay(true), ignored);
  std::string buffer;
  for (;;) {
    flow->set_deadline(in(session->options.header_timeout));
    Result<std::optional<std::string>> head = co_await read_head(flow->client, buffer, session->options.max_header_bytes);
    if (flow->over || (head.ok() && !*head)) co_return;
    if (!head.ok()) {
      co_await refuse(flow, head.error(), false);
      co_return;
    }
    Result<ProxyRequest> request = parse_proxy_request(**head);
    if (!request.ok()) {
      session->tell({.kind = EgressEvent::Kind::kHttp, .allowed = false, .reason = "malformed request: " + request.error().message()});
      co_await refuse(flow, request.error(), false);
      co_return;
    }
    const auto kind = request->connect ? EgressEvent::Kind::kConnect : EgressEvent::Kind::kHttp;
    const Result<void> opened = co_await open_upstream(session, flow, request->destination, kind);
    if (flow->over) co_return;
    if (!opened.ok()) {
      const bool told = opened.error().code() != ErrorCode::kNotFound && opened.error().code() != ErrorCode::kInternal;
      co_await refuse(flow, told ? opened.error() : Error(ErrorCode::kUnavailable, opened.error().message()), request->method == "HEAD");
      co_return;
    }
    request->destination = *flow->destination;
    if (request->connect) {
      co_await serve_connect(session, flow, request->destination, std::move(buffer));
      co_return;
    }
    if (!co_await forward(session, flow, *std::move(request), buffer)) co_return;
  }
}

}  // namespace dsec::edge
