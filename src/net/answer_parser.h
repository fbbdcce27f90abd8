// Takes one answer apart as its bytes come; Beast knows the format.
//
// Internal to net: pulls in Beast's parser.
#pragma once

#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/parser.hpp>
#include <optional>

#include "net/blocking_client.h"

namespace dsec::net {

class AnswerParser {
 public:
  // `sink`, when there is one, takes the body of a 2xx answer. Both outlive this.
  AnswerParser(const HttpCall& call, const BodySink& sink);
  AnswerParser(const AnswerParser&) = delete;
  AnswerParser& operator=(const AnswerParser&) = delete;

  // kUnavailable for what is no HTTP; what the sink returns.
  Result<void> take(std::string_view bytes);
  // The server has closed. kUnavailable when that cuts the answer off.
  Result<void> take_end();

  bool begun() const { return begun_; }
  bool done() const { return parser_->is_done(); }
  bool refuses() const { return parser_->is_header_done() && parser_->get().result_int() >= 300; }
  bool keeps_alive() const { return parser_->keep_alive() && rest_.empty(); }
  HttpAnswer answer();
  std::string take_rest() { return std::move(rest_); }  // what came behind a 101

 private:
  // Hands a body on, part by part.
  struct Body {
    struct Taker {
      AnswerParser* owner = nullptr;
    };
    using value_type = Taker;
    class reader {
     public:
      template <bool kIsRequest, class Fields>
      reader(boost::beast::http::header<kIsRequest, Fields>&, value_type& taker) : taker_(taker) {}
      void init(const boost::optional<std::uint64_t>&, boost::system::error_code& ec) { ec = {}; }
      template <class Buffers>
      std::size_t put(const Buffers& buffers, boost::system::error_code& ec) {
        std::size_t taken = 0;
        for (const boost::asio::const_buffer buffer : boost::beast::buffers_range(buffers)) {
          const Result<void> put = taker_.owner->take_body({static_cast<const char*>(buffer.data()), buffer.size()});
          if (!put.ok()) ec = boost::beast::http::error::body_limit;  // any: the owner has the one to tell
          if (!put.ok()) break;
          taken += buffer.size();
        }
        return taken;
      }
      void finish(boost::system::error_code& ec) { ec = {}; }

     private:
      value_type& taker_;
    };
  };
  using Parser = boost::beast::http::response_parser<Body>;

  void begin();
  Result<void> take_body(std::string_view part);
  Result<void> failed(const boost::system::error_code& ec);

  const bool bodiless_;  // the answer to HEAD
  const BodySink* const sink_;
  std::optional<Parser> parser_;
  std::string body_;
  std::optional<Error> body_error_;
  std::string rest_;  // of what came: an unfinished line, or what is behind the answer
  int interim_ = 0;
  bool begun_ = false;
};

}  // namespace dsec::net
