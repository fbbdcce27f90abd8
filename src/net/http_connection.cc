#include "net/http_connection.h"

#include <sys/socket.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <ctime>
#include <exception>

#include "base/log.h"
#include "net/stream_websocket.h"
#include "net/http_text.h"
#include "net/message_reader.h"

namespace dsec::net {

const std::string& ServerState::date() {
  const std::int64_t now = std::time(nullptr);
  if (now != date_second_) {
    date_second_ = now;
    date_ = http_date(now);
  }
  return date_;
}

namespace {
constexpr std::size_t kBodyBuffer = 64 << 10;
// An unread body of at most this size is read and dropped to keep the connection.
constexpr std::size_t kMaxSkippedBody = 256 << 10;

enum class Framing { kNone, kLength, kChunked, kUntilClose };

class Connection final : public Tracked {
 public:
  Connection(std::shared_ptr<ServerState> state, Socket socket, std::string remote_address)
      : state_(std::move(state)),
        socket_(std::move(socket)),
        remote_address_(std::move(remote_address)),
        buffer_(state_->options.max_header_bytes + kBodyBuffer),
        place_(state_->add(this)) {}
  ~Connection() override { state_->remove(place_); }

  void abort() override {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }
  void abort_if_waiting() override {
    if (waiting_) abort();
  }
  void abort_if_late(Instant now) override {
    if (deadline_ == Instant{} || now < deadline_) return;
    deadline_ = {};
    timed_out_ = true;
    boost::system::error_code ignored;
    socket_.cancel(ignored);
  }

  asio::awaitable<void> run();

 private:
  friend class ServerExchange;
  using Reader = MessageReader<true>;

  void set_deadline(Duration in) { deadline_ = std::chrono::steady_clock::now() + in; }
  void clear_deadline() { deadline_ = {}; }
  asio::awaitable<bool> serve_one();
  asio::awaitable<void> refuse(Error error, int status);

  const std::shared_ptr<ServerState> state_;
  Socket socket_;
  const std::string remote_address_;
  ReadBuffer buffer_;
  const ServerState::Place place_;
  Instant deadline_{};  // 0 = none
  bool timed_out_ = false;
  bool waiting_ = false;  // for a request that has not begun
  bool taken_ = false;    // the socket belongs to somebody else now
};

class ServerWebSocket;

class ServerExchange final : public Exchange {
 public:
  ServerExchange(Connection& connection, Connection::Reader& reader, HttpRequest request)
      : connection_(connection), reader_(reader), request_(std::move(request)) {
    http_1_0_ = reader.parser().get().version() < 11;
    head_ = request_.method == "HEAD";
    keep_alive_ = reader.parser().keep_alive() && !connection.state_->draining;
    const std::string* expect = request_.header("Expect");
    continue_owed_ = expect && !http_1_0_ && same_name(*expect, "100-continue");
  }

  const HttpRequest& request() const override { return request_; }
  bool answered() const override { return answered_; }

  std::optional<std::uint64_t> content_length() const override {
    const auto length = reader_.parser().content_length();
    if (length) return *length;
    if (reader_.parser().chunked()) return std::nullopt;
    return 0;
  }

  asio::awaitable<Result<std::size_t>> read_some(std::span<char> buffer) override {
    if (connection_.taken_) co_return Error(ErrorCode::kInternal, "the connection was handed over");
    if (reader_.body_done()) co_return std::size_t{0};
    if (continue_owed_) {
      continue_owed_ = false;
      if (!answered_) DSEC_CO_TRY(co_await write_all(connection_.socket_, "HTTP/1.1 100 Continue\r\n\r\n"));
    }
    Result<std::size_t> n = co_await reader_.read_body(connection_.socket_, connection_.buffer_, buffer);
    if (!n.ok()) {
      // A cancelled reader leaves the rest where it is; finish() deals with it.
      if (n.error().error_number() != ECANCELED || connection_.timed_out_) broken_ = true;
      if (connection_.timed_out_) co_return Error(ErrorCode::kDeadlineExceeded, "the body came too slowly");
    }
    co_return n;
  }

  asio::awaitable<Result<std::string>> read_body(std::size_t limit) override {
    if (const auto length = content_length(); length && *length > limit) co_return body_too_large(limit);
    std::string body;
    std::string part(std::min(limit + 1, kBodyBuffer), '\0');
    while (true) {
      connection_.set_deadline(connection_.state_->options.header_timeout);
      Result<std::size_t> n = co_await read_some(part);
      connection_.clear_deadline();
      if (!n.ok()) co_return std::move(n).error();
      if (*n == 0) co_return body;
      if (body.size() + *n > limit) co_return body_too_large(limit);
      body.append(part, 0, *n);
    }
  }

  asio::awaitable<Result<void>> respond(HttpResponse response) override {
    const std::uint64_t length = response.body.size();
    DSEC_CO_TRY(start_answer(response.status, response.headers, length));
    finished_ = true;
    const bool silent = head_ || framing_ == Framing::kNone;
    co_return failed(co_await write_parts(connection_.socket_, {head_text_, silent ? std::string_view() : response.body, {}}));
  }

  asio::awaitable<Result<void>> begin(int status, HeaderList headers, std::optional<std::uint64_t> length) override {
    DSEC_CO_TRY(start_answer(status, headers, length));
    left_ = length.value_or(0);
    co_return failed(co_await write_all(connection_.socket_, head_text_));
  }

  asio::awaitable<Result<void>> write(std::string_view bytes) override {
    if (!answered_ || finished_) co_return Error(ErrorCode::kInternal, "write() outside begin() and end()");
    if (bytes.empty() || head_ || framing_ == Framing::kNone) co_return Result<void>{};
    if (framing_ == Framing::kLength) {
      if (bytes.size() > left_) co_return Error(ErrorCode::kInternal, "the answer is longer than its declared length");
      left_ -= bytes.size();
    }
    if (framing_ != Framing::kChunked) co_return failed(co_await write_all(connection_.socket_, bytes));
    const std::string size = chunk_head(bytes.size());
    co_return failed(co_await write_parts(connection_.socket_, {size, bytes, "\r\n"}));
  }

  asio::awaitable<Result<void>> end() override {
    if (!answered_ || finished_) co_return Error(ErrorCode::kInternal, "end() without begin()");
    finished_ = true;
    if (head_ || framing_ == Framing::kNone) co_return Result<void>{};
    if (framing_ == Framing::kLength && left_ != 0) {
      broken_ = true;
      co_return Error(ErrorCode::kInternal, "the answer is shorter than its declared length");
    }
    if (framing_ == Framing::kChunked) co_return failed(co_await write_all(connection_.socket_, "0\r\n\r\n"));
    co_return Result<void>{};
  }

  asio::awaitable<Result<std::unique_ptr<WebSocket>>> accept_websocket(HeaderList headers) override;

  asio::awaitable<Result<RawConnection>> take_connection() override {
    if (answered_ || connection_.taken_) co_return Error(ErrorCode::kInternal, "the exchange is over");
    RawConnection raw;
    raw.already_read = std::string(connection_.buffer_.view());
    connection_.taken_ = true;
    answered_ = finished_ = true;
    boost::system::error_code ec;
    raw.fd = sys::Fd(connection_.socket_.release(ec));
    if (ec) co_return Error(ErrorCode::kInternal, "release the socket: " + ec.message());
    co_return std::move(raw);
  }

  asio::awaitable<void> client_gone() override {
    // Reading is the only way to learn of an end of file; what comes instead is
    // the next request and stays in the buffer. With a body unread, or the
    // buffer full, only an error tells.
    while (!connection_.taken_ && reader_.body_done() && connection_.buffer_.room() > 4096) {
      const Result<std::size_t> n = co_await connection_.buffer_.fill(connection_.socket_, 4096);
      // Cancelled: the handler no longer waits, the client may still be there.
      if (!n.ok() && n.error().error_number() == ECANCELED) co_return;
      if (!n.ok() || *n == 0) {
        broken_ = true;
        co_return;
      }
    }
    const auto [ec] = co_await connection_.socket_.async_wait(Socket::wait_error, asio::as_tuple(asio::use_awaitable));
    if (ec != asio::error::operation_aborted) broken_ = true;
  }

  // After the handler: answers if it did not, and says whether the connection may go on.
  asio::awaitable<bool> finish() {
    if (connection_.taken_) co_return false;
    if (!answered_ && !broken_)
      (void)co_await respond(error_response(Error(ErrorCode::kInternal, "the request was not answered")));
    if (!finished_ || broken_) {
      connection_.abort();
      co_return false;
    }
    for (std::size_t skipped = 0; !reader_.body_done();) {
      // A client that waits for 100 Continue sends nothing more.
      if (continue_owed_ || !keep_alive_ || skipped > kMaxSkippedBody) {
        co_await close_lingering(connection_.socket_);
        co_return false;
      }
      std::array<char, 4096> dropped;
      connection_.set_deadline(connection_.state_->options.header_timeout);
      const Result<std::size_t> n = co_await reader_.read_body(connection_.socket_, connection_.buffer_, dropped);
      connection_.clear_deadline();
      if (!n.ok()) {
        connection_.abort();
        co_return false;
      }
      skipped += *n;
    }
    if (!keep_alive_) co_await close_lingering(connection_.socket_);
    co_return keep_alive_;
  }

 private:
  static Error body_too_large(std::size_t limit) {
    return Error(ErrorCode::kTooLarge, "the body is larger than " + std::to_string(limit) + " bytes");
  }

  // Writes the head into head_text_.
  Result<void> start_answer(int status, const HeaderList& headers, std::optional<std::uint64_t> length) {
    if (answered_) return Error(ErrorCode::kInternal, "the request was answered already");
    answered_ = true;
    const bool bodiless = status == 204 || status == 304 || status < 200;
    if (!reader_.body_done() && (continue_owed_ || content_length().value_or(kMaxSkippedBody + 1) > kMaxSkippedBody)) keep_alive_ = false;
    if (connection_.state_->draining) keep_alive_ = false;
    framing_ = bodiless ? Framing::kNone : length ? Framing::kLength : http_1_0_ ? Framing::kUntilClose : Framing::kChunked;
    if (framing_ == Framing::kUntilClose) keep_alive_ = false;
    head_text_ = status_line(status);
    append_header(head_text_, "Date", connection_.state_->date());
    for (const auto& [name, value] : headers)
      if (!is_framing_header(name)) append_header(head_text_, name, value);
    if (framing_ == Framing::kLength) append_header(head_text_, "Content-Length", std::to_string(*length));
    if (framing_ == Framing::kChunked) append_header(head_text_, "Transfer-Encoding", "chunked");
    if (!keep_alive_)
      append_header(head_text_, "Connection", "close");
    else if (http_1_0_)
      append_header(head_text_, "Connection", "keep-alive");
    head_text_.append("\r\n");
    return {};
  }

  Result<void> failed(Result<void> written) {
    if (!written.ok()) broken_ = true;
    return written;
  }

  Connection& connection_;
  Connection::Reader& reader_;
  HttpRequest request_;
  std::string head_text_;
  Framing framing_ = Framing::kNone;
  std::uint64_t left_ = 0;
  bool http_1_0_ = false;
  bool head_ = false;
  bool keep_alive_ = true;
  bool continue_owed_ = false;
  bool answered_ = false;
  bool finished_ = false;
  bool broken_ = false;
};

// A WebSocket is a request in progress: drain waits for it, then closes it.
class ServerWebSocket final : public WebSocket, public Tracked {
 public:
  ServerWebSocket(std::shared_ptr<ServerState> state, std::unique_ptr<StreamWebSocket> inner)
      : state_(std::move(state)), inner_(std::move(inner)), place_(state_->add(this)) {}
  ~ServerWebSocket() override { state_->remove(place_); }

  asio::awaitable<Result<Message>> read() override { return inner_->read(); }
  asio::awaitable<Result<void>> write(bool text, std::string_view bytes) override { return inner_->write(text, bytes); }
  asio::awaitable<void> close(std::uint16_t code, std::string_view reason) override { return inner_->close(code, reason); }
  void abort() override { inner_->abort(); }
  void abort_if_waiting() override {}
  void abort_if_late(Instant) override {}

 private:
  const std::shared_ptr<ServerState> state_;
  const std::unique_ptr<StreamWebSocket> inner_;
  const ServerState::Place place_;
};

asio::awaitable<Result<std::unique_ptr<WebSocket>>> ServerExchange::accept_websocket(HeaderList headers) {
  if (answered_ || connection_.taken_) co_return Error(ErrorCode::kInternal, "the exchange is over");
  if (!request_.websocket_upgrade) co_return invalid_argument("this address speaks WebSocket: an upgrade request is expected");
  const std::string* key = request_.header("Sec-WebSocket-Key");
  const std::string* version = request_.header("Sec-WebSocket-Version");
  if (!key || key->size() != 24 || !version || *version != "13")
    co_return invalid_argument("not a WebSocket upgrade of version 13");
  answered_ = finished_ = true;
  std::string head = status_line(101);
  append_header(head, "Upgrade", "websocket");
  append_header(head, "Connection", "Upgrade");
  append_header(head, "Sec-WebSocket-Accept", websocket_accept_key(*key));
  for (const auto& [name, value] : headers)
    if (!is_framing_header(name)) append_header(head, name, value);
  head.append("\r\n");
  DSEC_CO_TRY(failed(co_await write_all(connection_.socket_, head)));
  connection_.taken_ = true;
  std::string rest(connection_.buffer_.view());
  auto inner = std::make_unique<StreamWebSocket>(std::move(connection_.socket_), std::move(rest));
  co_return std::unique_ptr<WebSocket>(std::make_unique<ServerWebSocket>(connection_.state_, std::move(inner)));
}

// Everything of a request but its target, checked as far as any handler needs.
Result<HttpRequest> request_of(const MessageReader<true>& reader, const std::string& remote_address) {
  const auto& message = reader.parser().get();
  HttpRequest request;
  request.method = std::string(message.method_string());
  request.target = std::string(message.target());
  request.remote_address = remote_address;
  std::size_t hosts = 0;
  for (const auto& field : message) {
    request.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
    if (field.name() == http::field::host) ++hosts;
  }
  if (hosts > 1 || (hosts == 0 && message.version() >= 11)) return invalid_argument("exactly one Host header is expected");
  // A framing that we and a proxy before us could read differently is refused.
  std::size_t encodings = 0;
  for (const auto& [name, value] : request.headers) {
    if (!same_name(name, "Transfer-Encoding")) continue;
    if (++encodings > 1 || !same_name(value, "chunked") || message.version() < 11)
      return Error(ErrorCode::kUnsupported, "the only Transfer-Encoding is chunked, of HTTP/1.1");
  }
  if (const std::string* expect = request.header("Expect"); expect && !same_name(*expect, "100-continue"))
    return invalid_argument("Expect: only 100-continue is known");
  const std::string* upgrade = request.header("Upgrade");
  const std::string* connection = request.header("Connection");
  request.upgrade = upgrade && connection && has_token(*connection, "upgrade");
  request.websocket_upgrade = request.upgrade && request.method == "GET" && has_token(*upgrade, "websocket");
  DSEC_TRY(parse_target(request));
  return request;
}

asio::awaitable<void> Connection::refuse(Error error, int status) {
  HttpResponse response = error_response(error, {.status = status});
  std::string head = status_line(response.status);
  append_header(head, "Date", state_->date());
  for (const auto& [name, value] : response.headers) append_header(head, name, value);
  append_header(head, "Content-Length", std::to_string(response.body.size()));
  append_header(head, "Connection", "close");
  head.append("\r\n");
  (void)co_await write_parts(socket_, {head, response.body, {}});
  co_await close_lingering(socket_);
}

asio::awaitable<bool> Connection::serve_one() {
  if (buffer_.empty()) {
    buffer_.rest();
    waiting_ = true;
    set_deadline(state_->options.idle_timeout);
    const Result<std::size_t> n = co_await buffer_.fill(socket_, 4096);
    waiting_ = false;
    if (!n.ok() || *n == 0) co_return false;
  }
  Reader reader(state_->options.max_header_bytes);
  set_deadline(state_->options.header_timeout);
  const Result<bool> header = co_await reader.read_header(socket_, buffer_);
  clear_deadline();
  if (!header.ok()) {
    if (timed_out_)
      co_await refuse(Error(ErrorCode::kDeadlineExceeded, "the header came too slowly"), 408);
    else if (header.error().code() == ErrorCode::kTooLarge)
      co_await refuse(header.error(), 431);
    else if (header.error().code() == ErrorCode::kInvalidArgument)
      co_await refuse(header.error(), 400);
    co_return false;
  }
  if (!*header) co_return false;
  Result<HttpRequest> request = request_of(reader, remote_address_);
  if (!request.ok()) {
    co_await refuse(request.error(), 0);
    co_return false;
  }
  ServerExchange exchange(*this, reader, *std::move(request));
  try {
    co_await state_->handler(exchange);
  } catch (const std::exception& exception) {
    // A library's exception that an adapter missed: our fault, this request's end.
    log_error("a request handler failed", {{"path", exchange.request().path}, {"what", exception.what()}});
  }
  co_return co_await exchange.finish();
}

asio::awaitable<void> Connection::run() {
  while (socket_.is_open() && !taken_ && !(state_->draining && buffer_.empty()))
    if (!co_await serve_one()) break;
}
}  // namespace

asio::awaitable<void> run_connection(std::shared_ptr<ServerState> state, Socket socket, std::string remote_address) {
  Connection connection(std::move(state), std::move(socket), std::move(remote_address));
  co_await connection.run();
}

}  // namespace dsec::net
