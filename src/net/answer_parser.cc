#include "net/answer_parser.h"

namespace dsec::net {

namespace http = boost::beast::http;

namespace {
constexpr std::uint32_t kMaxHead = 256 << 10;
constexpr std::size_t kMaxKept = 256 << 20;  // of an answer that is kept in memory
constexpr int kMaxInterim = 16;
}  // namespace

AnswerParser::AnswerParser(const HttpCall& call, const BodySink& sink) : bodiless_(call.method == "HEAD"), sink_(sink ? &sink : nullptr) { begin(); }

void AnswerParser::begin() {
  parser_.emplace();
  parser_->header_limit(kMaxHead);
  parser_->body_limit(boost::none);
  parser_->eager(true);
  parser_->skip(bodiless_);
  parser_->get().body().owner = this;
}

Result<void> AnswerParser::take_body(std::string_view part) {
  Result<void> taken;
  if (sink_ != nullptr && parser_->get().result_int() / 100 == 2)
    taken = (*sink_)(part);
  else if (body_.size() + part.size() > kMaxKept)
    taken = Error(ErrorCode::kTooLarge, "the answer is larger than 256 MiB");
  else
    body_ += part;
  if (!taken.ok()) body_error_ = taken.error();
  return taken;
}

Result<void> AnswerParser::failed(const boost::system::error_code& ec) {
  if (body_error_) return *body_error_;
  return Error(ErrorCode::kUnavailable, "the server's answer is no HTTP: " + ec.message());
}

Result<void> AnswerParser::take(std::string_view bytes) {
  begun_ = begun_ || !bytes.empty();
  rest_ += bytes;
  while (!rest_.empty() && !done()) {
    boost::system::error_code ec;
    const std::size_t used = parser_->put(boost::asio::buffer(rest_), ec);
    rest_.erase(0, used);
    if (ec && ec != http::error::need_more) return failed(ec);
    if (done() && parser_->get().result_int() / 100 == 1 && parser_->get().result_int() != 101) {
      if (++interim_ > kMaxInterim) return Error(ErrorCode::kUnavailable, "the server sends interim answers without end");
      begin();
      continue;
    }
    if (ec || used == 0) break;
  }
  if (rest_.size() > kMaxHead && !done()) return Error(ErrorCode::kUnavailable, "the server's answer is no HTTP: a line without end");
  return {};
}

Result<void> AnswerParser::take_end() {
  boost::system::error_code ec;
  if (!begun_) return Error(ErrorCode::kUnavailable, "the server closed the connection without an answer");
  parser_->put_eof(ec);
  if (ec) return Error(ErrorCode::kUnavailable, "the server closed the connection inside its answer");
  return {};
}

HttpAnswer AnswerParser::answer() {
  auto& message = parser_->get();
  HttpAnswer out{.status = static_cast<int>(message.result_int())};
  for (const auto& field : message) out.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  out.body = std::move(body_);
  return out;
}

}  // namespace dsec::net
