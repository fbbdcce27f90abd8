#include "net/upstream_connection.h"

#include <boost/asio/this_coro.hpp>

#include "net/message_reader.h"
#include "net/stream_socket.h"

namespace dsec::net {

const std::string* ResponseHead::header(std::string_view name) const { return find_header(headers, name); }

namespace {
constexpr std::size_t kHeaderLimit = 64 << 10;
using Reader = MessageReader<false>;

class Connection final : public UpstreamConnection {
 public:
  explicit Connection(Socket socket) : socket_(std::move(socket)), buffer_(kHeaderLimit + (64 << 10)) {}

  asio::awaitable<Result<void>> send_head(RequestHead request) override {
    framing_ = request.framing;
    left_ = request.length;
    method_ = request.method;
    reader_.reset();
    const std::string head = to_text(request);
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
    const std::string size = chunk_head(bytes.size());
    co_return co_await write_parts(socket_, {size, bytes, "\r\n"});
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

  Exchange::RawConnection take() override {
    Exchange::RawConnection raw;
    raw.already_read = std::string(buffer_.view());
    boost::system::error_code ec;
    raw.fd = sys::Fd(socket_.release(ec));
    return raw;
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
}  // namespace

asio::awaitable<Result<std::unique_ptr<UpstreamConnection>>> UpstreamConnection::adopt(sys::Fd fd) {
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  set_no_delay(fd.get());
  DSEC_CO_ASSIGN(Socket socket, adopt_socket(executor, std::move(fd)));
  co_return std::unique_ptr<UpstreamConnection>(std::make_unique<Connection>(std::move(socket)));
}

}  // namespace dsec::net
