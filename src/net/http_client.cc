#include "net/http_client.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstring>

#include "base/encoding.h"
#include "base/random.h"
#include "net/http_text.h"
#include "net/message_reader.h"
#include "net/stream_socket.h"
#include "net/stream_websocket.h"

namespace dsec::net {

std::string Endpoint::host_header() const {
  if (!unix_path.empty()) return "localhost";
  const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return port == 80 ? name : name + ":" + std::to_string(port);
}

Result<Endpoint> parse_endpoint(std::string_view url) {
  Endpoint endpoint;
  if (url.starts_with("unix:")) {
    std::string_view path = url.substr(5);
    if (path.starts_with("//")) path.remove_prefix(2);
    if (path.empty()) return invalid_argument("unix: needs a path");
    endpoint.unix_path = std::string(path);
    return endpoint;
  }
  if (url.starts_with("https://")) return Error(ErrorCode::kUnsupported, "https addresses are not spoken here; use a TLS proxy or a unix socket");
  if (url.starts_with("http://"))
    url.remove_prefix(7);
  else if (url.find("://") != std::string_view::npos)
    return invalid_argument("\"" + std::string(url) + "\": only http:// and unix: addresses are known");
  const std::size_t slash = std::min(url.find('/'), url.size());
  std::string_view authority = url.substr(0, slash);
  std::string_view prefix = url.substr(slash);
  while (prefix.ends_with('/')) prefix.remove_suffix(1);
  endpoint.path_prefix = std::string(prefix);
  std::string_view port;
  if (authority.starts_with('[')) {
    const std::size_t close = authority.find(']');
    if (close == std::string_view::npos) return invalid_argument("the address has no closing bracket");
    endpoint.host = std::string(authority.substr(1, close - 1));
    if (authority.substr(close + 1).starts_with(':')) port = authority.substr(close + 2);
  } else {
    const std::size_t colon = authority.rfind(':');
    endpoint.host = std::string(authority.substr(0, colon));
    if (colon != std::string_view::npos) port = authority.substr(colon + 1);
  }
  if (endpoint.host.empty()) return invalid_argument("the address names no host");
  if (!port.empty()) {
    unsigned value = 0;
    for (const char c : port) {
      if (c < '0' || c > '9' || (value = value * 10 + static_cast<unsigned>(c - '0')) > 65535) return invalid_argument("the address has no proper port");
    }
    endpoint.port = static_cast<std::uint16_t>(value);
  }
  return endpoint;
}

const std::string* ResponseHead::header(std::string_view name) const { return find_header(headers, name); }

namespace {
constexpr std::size_t kHeaderLimit = 64 << 10;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
using Reader = MessageReader<false>;

class Connection final : public ClientConnection {
 public:
  explicit Connection(Socket socket) : socket_(std::move(socket)), buffer_(kHeaderLimit + (64 << 10)) {}

  asio::awaitable<Result<void>> send_head(Request request) override {
    framing_ = request.framing;
    left_ = request.length;
    method_ = request.method;
    reader_.reset();
    std::string head = request.method + " " + request.target + " HTTP/1.1\r\n";
    for (const auto& [name, value] : request.headers)
      if (!is_framing_header(name)) append_header(head, name, value);
    if (request.upgrade) append_header(head, "Connection", "Upgrade");
    if (framing_ == BodyFraming::kLength) append_header(head, "Content-Length", std::to_string(request.length));
    if (framing_ == BodyFraming::kChunked) append_header(head, "Transfer-Encoding", "chunked");
    head.append("\r\n");
    co_return co_await write_all(socket_, head);
  }

  asio::awaitable<Result<void>> write_body(std::string_view bytes) override {
    if (bytes.empty()) co_return Result<void>{};
    if (framing_ == BodyFraming::kLength) {
      if (bytes.size() > left_) co_return Error(ErrorCode::kInternal, "the body is longer than its declared length");
      left_ -= bytes.size();
      co_return co_await write_all(socket_, bytes);
    }
    if (framing_ == BodyFraming::kNone) co_return Error(ErrorCode::kInternal, "the request has no body");
    std::array<char, 20> size{};
    const int n = std::snprintf(size.data(), size.size(), "%zx\r\n", bytes.size());
    co_return co_await write_parts(socket_, {std::string_view(size.data(), static_cast<std::size_t>(n)), bytes, "\r\n"});
  }

  asio::awaitable<Result<void>> end_body() override {
    if (framing_ == BodyFraming::kLength && left_ != 0) co_return Error(ErrorCode::kInternal, "the body is shorter than its declared length");
    if (framing_ != BodyFraming::kChunked) co_return Result<void>{};
    co_return co_await write_all(socket_, "0\r\n\r\n");
  }

  asio::awaitable<Result<ResponseHead>> read_head() override {
    constexpr int kMaxInterim = 16;
    for (int i = 0; i < kMaxInterim; ++i) {
      reader_.emplace(kHeaderLimit);
      if (method_ == "HEAD") reader_->parser().skip(true);
      DSEC_CO_ASSIGN(const bool there, co_await reader_->read_header(socket_, buffer_));
      if (!there) co_return Error(ErrorCode::kUnavailable, "the server closed the connection without an answer");
      const auto& message = reader_->parser().get();
      ResponseHead head;
      head.status = static_cast<int>(message.result_int());
      if (head.status < 200 && head.status != 101) continue;
      for (const auto& field : message) head.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
      if (const auto length = reader_->parser().content_length()) head.content_length = *length;
      co_return std::move(head);
    }
    co_return invalid_argument("the server sends interim answers without end");
  }

  asio::awaitable<Result<std::size_t>> read_some(std::span<char> out) override {
    DSEC_CHECK(reader_.has_value());
    co_return co_await reader_->read_body(socket_, buffer_, out);
  }

  asio::awaitable<Result<std::string>> read_body(std::size_t limit) override {
    std::string body;
    std::string part(std::min<std::size_t>(limit + 1, 64 << 10), '\0');
    while (true) {
      DSEC_CO_ASSIGN(const std::size_t n, co_await read_some(part));
      if (n == 0) co_return body;
      if (body.size() + n > limit) co_return Error(ErrorCode::kTooLarge, "the answer is larger than " + std::to_string(limit) + " bytes");
      body.append(part, 0, n);
    }
  }

  bool reusable() const override {
    return socket_.is_open() && reader_ && reader_->body_done() && reader_->parser().keep_alive() && buffer_.empty();
  }

  asio::awaitable<Result<HttpResponse>> call(std::string method, std::string target, HeaderList headers, std::string body,
                                             std::size_t limit) override {
    const bool bodiless = body.empty() && (method == "GET" || method == "HEAD" || method == "DELETE");
    DSEC_CO_TRY(co_await send_head({.method = std::move(method),
                                    .target = std::move(target),
                                    .headers = std::move(headers),
                                    .framing = bodiless ? BodyFraming::kNone : BodyFraming::kLength,
                                    .length = body.size()}));
    // A server may refuse while we still send; its answer tells more than our failure.
    Result<void> sent = co_await write_body(body);
    Result<ResponseHead> head = co_await read_head();
    if (!head.ok()) co_return sent.ok() ? std::move(head).error() : std::move(sent).error();
    HttpResponse response{.status = head->status, .headers = std::move(head->headers)};
    DSEC_CO_ASSIGN(response.body, co_await read_body(limit));
    co_return std::move(response);
  }

  Exchange::RawConnection take() override {
    Exchange::RawConnection raw;
    raw.already_read = std::string(buffer_.view());
    boost::system::error_code ec;
    raw.fd = sys::Fd(socket_.release(ec));
    return raw;
  }

  asio::awaitable<Result<std::unique_ptr<WebSocket>>> websocket(std::string target, HeaderList headers) override {
    const std::string key = to_base64(SystemRandom().bytes(16));
    headers.emplace_back("Upgrade", "websocket");
    headers.emplace_back("Sec-WebSocket-Version", "13");
    headers.emplace_back("Sec-WebSocket-Key", key);
    DSEC_CO_TRY(co_await send_head({.method = "GET", .target = std::move(target), .headers = std::move(headers), .upgrade = true}));
    DSEC_CO_ASSIGN(const ResponseHead head, co_await read_head());
    if (head.status != 101) {
      constexpr std::size_t kMaxText = 64 << 10;
      Result<std::string> text = co_await read_body(kMaxText);
      co_return Error(ErrorCode::kUnavailable, "no WebSocket: status " + std::to_string(head.status) + (text.ok() ? ": " + *text : ""));
    }
    const std::string* accept = head.header("Sec-WebSocket-Accept");
    if (!accept || *accept != websocket_accept_key(key)) co_return invalid_argument("the server's WebSocket handshake is wrong");
    co_return std::unique_ptr<WebSocket>(
        std::make_unique<StreamWebSocket>(std::move(socket_), std::string(buffer_.view()), WebSocketSide::kClient));
  }

  void abort() override {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

 private:
  Socket socket_;
  ReadBuffer buffer_;
  std::optional<Reader> reader_;
  std::string method_;
  BodyFraming framing_ = BodyFraming::kNone;
  std::uint64_t left_ = 0;
};

Result<sys::Fd> start_unix(const std::string& path, sockaddr_un& address) {
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return invalid_argument("the socket path is too long");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  sys::Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_error("socket", errno);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return Error(ErrorCode::kUnavailable, "connect to " + path + ": " + std::strerror(errno), errno);
  return fd;
}
}  // namespace

asio::awaitable<Result<std::unique_ptr<ClientConnection>>> ClientConnection::adopt(sys::Fd fd) {
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  set_no_delay(fd.get());
  DSEC_CO_ASSIGN(Socket socket, adopt_socket(executor, std::move(fd)));
  co_return std::unique_ptr<ClientConnection>(std::make_unique<Connection>(std::move(socket)));
}

asio::awaitable<Result<std::unique_ptr<ClientConnection>>> ClientConnection::connect(Endpoint endpoint, Deadline deadline) {
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  if (!endpoint.unix_path.empty()) {
    sockaddr_un address{};
    DSEC_CO_ASSIGN(sys::Fd fd, start_unix(endpoint.unix_path, address));
    co_return co_await adopt(std::move(fd));
  }
  const std::string where = endpoint.host + ":" + std::to_string(endpoint.port);
  std::vector<asio::ip::tcp::endpoint> addresses;
  boost::system::error_code ec;
  if (const auto literal = asio::ip::make_address(endpoint.host, ec); !ec) {
    addresses.emplace_back(literal, endpoint.port);
  } else {
    asio::ip::tcp::resolver resolver(executor);
    auto [failed, found] = co_await resolver.async_resolve(endpoint.host, std::to_string(endpoint.port), kAwait);
    if (failed) co_return Error(ErrorCode::kUnavailable, "look up " + endpoint.host + ": " + failed.message());
    for (const auto& entry : found) addresses.push_back(entry.endpoint());
  }
  boost::system::error_code last = asio::error::host_not_found;
  for (const asio::ip::tcp::endpoint& address : addresses) {
    asio::ip::tcp::socket socket(executor);
    asio::steady_timer timer(executor, deadline.when());
    bool late = false;
    timer.async_wait([&socket, &late](const boost::system::error_code& cancelled) {
      if (cancelled) return;
      late = true;
      boost::system::error_code ignored;
      socket.close(ignored);
    });
    auto [failed] = co_await socket.async_connect(address, kAwait);
    timer.cancel();
    // The timer's handler may be queued already; it must not meet a dead socket.
    if (deadline.passed() && !late) co_await asio::post(executor, asio::use_awaitable);
    if (late) co_return Error(ErrorCode::kDeadlineExceeded, "connect to " + where + ": timed out");
    last = failed;
    if (failed) continue;
    const int fd = socket.release(ec);
    if (ec) co_return Error(ErrorCode::kInternal, "connect to " + where + ": " + ec.message());
    co_return co_await adopt(sys::Fd(fd));
  }
  co_return Error(ErrorCode::kUnavailable, "connect to " + where + ": " + last.message(), last.value());
}

}  // namespace dsec::net
