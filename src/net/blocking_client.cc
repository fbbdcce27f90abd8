#include "net/blocking_client.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <optional>

namespace dsec::net {

namespace {
// co_spawn and the operators want types with a default; a Result has none.
template <typename T>
asio::awaitable<void> keep(asio::awaitable<T> coroutine, std::optional<T>& out) {
  out.emplace(co_await std::move(coroutine));
}

// The body of a streamed call. Shared by its sender and the reader of the answer.
struct Upload {
  std::shared_ptr<ClientConnection> connection;
  std::function<Result<std::string>()> next_part;
  Result<void> sent;
  bool over = false;
};

// Runs beside the reader: a server that refuses early must not leave us stuck
// in a full socket.
asio::awaitable<void> send_body(std::shared_ptr<Upload> upload) {
  while (true) {
    Result<std::string> part = upload->next_part();
    if (!part.ok()) {
      upload->sent = std::move(part).error();
      upload->connection->abort();
      break;
    }
    upload->sent = part->empty() ? co_await upload->connection->end_body() : co_await upload->connection->write_body(*part);
    if (!upload->sent.ok() || part->empty()) break;
    // next_part blocks the thread; the answer is looked at between two parts.
    co_await asio::post(co_await asio::this_coro::executor, asio::use_awaitable);
  }
  upload->over = true;
}

// Ends a sender that the answer has overtaken.
class UploadEnd {
 public:
  explicit UploadEnd(std::shared_ptr<Upload> upload) : upload_(std::move(upload)) {}
  ~UploadEnd() {
    if (!upload_->over) upload_->connection->abort();
  }
  UploadEnd(const UploadEnd&) = delete;
  UploadEnd& operator=(const UploadEnd&) = delete;

 private:
  const std::shared_ptr<Upload> upload_;
};
}  // namespace

BlockingClient::BlockingClient(Endpoint endpoint, HeaderList headers, Options options)
    : endpoint_(std::move(endpoint)), headers_(std::move(headers)), options_(options) {}
BlockingClient::~BlockingClient() = default;

HeaderList BlockingClient::with_own_headers(HeaderList headers) const {
  headers.insert(headers.begin(), {"Host", endpoint_.host_header()});
  headers.insert(headers.end(), headers_.begin(), headers_.end());
  return headers;
}

asio::awaitable<Result<std::unique_ptr<ClientConnection>>> BlockingClient::open() {
  co_return co_await ClientConnection::connect(endpoint_, Deadline::in(options_.connect_timeout));
}

asio::awaitable<Result<HttpResponse>> BlockingClient::do_call(std::string method, std::string target, std::string body, HeaderList headers) {
  for (int attempt = 0;; ++attempt) {
    const bool kept = kept_ != nullptr;
    active_ = std::move(kept_);
    if (!active_) {
      DSEC_CO_ASSIGN(active_, co_await open());
    }
    const std::shared_ptr<ClientConnection> connection = active_;
    Result<HttpResponse> response = co_await connection->call(method, target, with_own_headers(headers), body, options_.answer_limit);
    if (!response.ok() && kept && attempt == 0 &&
        (response.error().code() == ErrorCode::kUnavailable || response.error().code() == ErrorCode::kCancelled))
      continue;
    if (response.ok() && connection->reusable()) kept_ = connection;
    co_return response;
  }
}

asio::awaitable<Result<HttpResponse>> BlockingClient::do_stream(std::string method, std::string target, HeaderList headers, Streams streams) {
  DSEC_CO_ASSIGN(active_, co_await open());
  const std::shared_ptr<ClientConnection> connection = active_;
  const BodyFraming framing = !streams.next_part ? BodyFraming::kNone : streams.length ? BodyFraming::kLength : BodyFraming::kChunked;
  DSEC_CO_TRY(co_await connection->send_head({.method = std::move(method),
                                              .target = std::move(target),
                                              .headers = with_own_headers(std::move(headers)),
                                              .framing = framing,
                                              .length = streams.length.value_or(0)}));
  const auto upload = std::make_shared<Upload>(Upload{connection, std::move(streams.next_part), {}, framing == BodyFraming::kNone});
  if (!upload->over) asio::co_spawn(io_, send_body(upload), asio::detached);
  const UploadEnd end(upload);
  Result<ResponseHead> head = co_await connection->read_head();
  if (!head.ok()) co_return upload->sent.ok() ? std::move(head).error() : upload->sent.error();
  if (streams.on_head) streams.on_head(*head);
  HttpResponse response{.status = head->status, .headers = head->headers};
  if (!streams.on_part || head->status >= 400) {
    DSEC_CO_ASSIGN(response.body, co_await connection->read_body(options_.answer_limit));
    co_return std::move(response);
  }
  std::string part(64 << 10, '\0');
  while (true) {
    DSEC_CO_ASSIGN(const std::size_t n, co_await connection->read_some(part));
    if (n == 0 || !streams.on_part(std::string_view(part).substr(0, n))) break;
  }
  co_return std::move(response);
}

Result<HttpResponse> BlockingClient::finish(asio::awaitable<Result<HttpResponse>> call) {
  Outcome outcome;
  bool late = false;
  asio::steady_timer timer(io_, options_.call_timeout);
  timer.async_wait([this, &late](const boost::system::error_code& cancelled) {
    if (cancelled) return;
    late = true;
    if (active_) active_->abort();
  });
  bool done = false;
  asio::co_spawn(io_, keep(std::move(call), outcome), [&](std::exception_ptr) {
    done = true;
    timer.cancel();
  });
  io_.restart();
  io_.run();
  active_.reset();
  if (late) return Error(ErrorCode::kDeadlineExceeded, "the call took too long");
  if (!done || !outcome) return Error(ErrorCode::kInternal, "the call failed inside the client");
  return *std::move(outcome);
}

Result<HttpResponse> BlockingClient::call(const std::string& method, const std::string& target, std::string body, HeaderList headers) {
  return finish(do_call(method, target, std::move(body), std::move(headers)));
}

Result<HttpResponse> BlockingClient::stream(const std::string& method, const std::string& target, HeaderList headers, Streams streams) {
  return finish(do_stream(method, target, std::move(headers), std::move(streams)));
}

Result<void> BlockingClient::run(asio::awaitable<Result<void>> coroutine) {
  std::optional<Result<void>> outcome;
  asio::co_spawn(io_, keep(std::move(coroutine), outcome), [](std::exception_ptr) {});
  io_.restart();
  // Not until the loop is empty: the caller may have left reads of a terminal behind.
  while (!outcome && io_.run_one() > 0) {
  }
  if (!outcome) return Error(ErrorCode::kInternal, "the call failed inside the client");
  return *std::move(outcome);
}

}  // namespace dsec::net
