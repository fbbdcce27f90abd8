#include "net/blocking_client.h"

#include "base/encoding.h"
#include "base/random.h"
#include "net/answer_parser.h"
#include "net/websocket_frame.h"

namespace dsec::net {
namespace {

constexpr auto kConnectPatience = std::chrono::seconds(10);

Deadline earliest(Duration patience, const std::optional<Deadline>& whole) {
  const Deadline alone = Deadline::in(patience);
  return whole && whole->when() < alone.when() ? *whole : alone;
}

// The bytes of a request, made as the server takes them.
class Sender {
 public:
  Sender(const HttpCall& call, const RequestHead& head) : source_(call.body_source), pending_(to_text(head)) {
    if (!source_) pending_ += call.body;
  }

  bool done() const { return pending_.empty() && !source_; }
  // Bytes taken now; 0 = the server takes no more at the moment.
  Result<std::size_t> send(Wire& wire) {
    if (pending_.empty() && source_) DSEC_TRY(next_part());
    DSEC_ASSIGN(const std::size_t put, wire.try_write(std::string_view(pending_).substr(at_)));
    at_ += put;
    if (at_ == pending_.size()) {
      pending_.clear();
      at_ = 0;
    }
    return put;
  }

 private:
  Result<void> next_part() {
    DSEC_ASSIGN(const std::string part, source_());
    pending_ = chunk_head(part.size()) + part + "\r\n";
    if (part.empty()) source_ = {};
    return {};
  }

  BodySource source_;  // empty at its end
  std::string pending_;
  std::size_t at_ = 0;
};

// One request and its answer on a wire, both at the same time.
class Transfer {
 public:
  Transfer(Wire& wire, const HttpCall& call, const RequestHead& head, const BodySink& sink)
      : wire_(wire), patience_(call.timeout), whole_(call.deadline), sender_(call, head), parser_(call, sink) {}

  Result<void> run() {
    Deadline deadline = earliest(patience_, whole_);
    while (!parser_.done()) {
      if (whole_ && whole_->passed()) return Error(ErrorCode::kDeadlineExceeded, "the server's answer takes too long");
      const bool sending = !lost_ && !sender_.done() && !parser_.refuses();
      bool moved = false;
      if (sending) {
        DSEC_ASSIGN(moved, send());
      }
      DSEC_ASSIGN(const bool came, receive());
      if (moved || came)
        deadline = earliest(patience_, whole_);
      else
        DSEC_TRY(wire_.wait(sending && !lost_, deadline));
    }
    return {};
  }

  AnswerParser& parser() { return parser_; }
  bool wire_is_clean() const { return !closed_ && !lost_ && sender_.done() && parser_.keeps_alive(); }

 private:
  Result<bool> send() {
    auto put = sender_.send(wire_);
    if (put.ok()) return *put > 0;
    // A server that takes no more may have said why.
    if (put.error().code() != ErrorCode::kUnavailable) return std::move(put).error();
    lost_ = std::move(put).error();
    return true;
  }

  Result<bool> receive() {
    char part[64 << 10];
    auto got = wire_.try_read(part, sizeof part);
    if (got.ok()) {
      DSEC_TRY(parser_.take({part, *got}));
      return *got > 0;
    }
    if (got.error().code() != ErrorCode::kUnavailable) return std::move(got).error();
    closed_ = true;
    if (!parser_.begun()) return lost_ ? *lost_ : std::move(got).error();
    DSEC_TRY(parser_.take_end());
    return true;
  }

  Wire& wire_;
  const Duration patience_;
  const std::optional<Deadline> whole_;
  Sender sender_;
  AnswerParser parser_;
  std::optional<Error> lost_;  // nothing more can be sent
  bool closed_ = false;
};

bool may_repeat(const HttpCall& call) { return call.method != "POST" && call.method != "PATCH" && !call.body_source; }

}  // namespace

BlockingClient::BlockingClient(ServerAddress address, HeaderList headers) : address_(std::move(address)), headers_(std::move(headers)) {}

RequestHead BlockingClient::head_of(const HttpCall& call) const {
  RequestHead head{.method = call.method, .target = address_.prefix + call.target, .headers = {{"Host", address_.authority()}}};
  head.headers.insert(head.headers.end(), headers_.begin(), headers_.end());
  head.headers.insert(head.headers.end(), call.headers.begin(), call.headers.end());
  head.length = call.body.size();
  const bool empty = call.body.empty() && (call.method == "GET" || call.method == "HEAD");
  head.framing = call.body_source ? BodyFraming::kChunked : empty ? BodyFraming::kNone : BodyFraming::kLength;
  return head;
}

Result<std::unique_ptr<Wire>> BlockingClient::connect(const std::optional<Deadline>& whole) const {
  return Wire::connect(address_, earliest(kConnectPatience, whole));
}

Result<HttpAnswer> BlockingClient::call(const HttpCall& call, const BodySink& sink) {
  std::unique_ptr<Wire> wire = std::move(kept_);
  if (wire && wire->stale()) wire.reset();
  bool repeat = wire != nullptr && may_repeat(call);
  while (true) {
    if (!wire) {
      auto fresh = connect(call.deadline);
      if (!fresh.ok()) return std::move(fresh).error();
      wire = std::move(fresh).value();
    }
    Transfer transfer(*wire, call, head_of(call), sink);
    Result<void> done = transfer.run();
    if (!done.ok() && repeat && !transfer.parser().begun() && done.error().code() == ErrorCode::kUnavailable) {
      repeat = false;
      wire.reset();
      continue;
    }
    if (!done.ok()) return std::move(done).error();
    if (transfer.wire_is_clean()) kept_ = std::move(wire);
    return transfer.parser().answer();
  }
}

Result<WebSocketClient> BlockingClient::websocket(const std::string& target) {
  auto connected = connect({});
  if (!connected.ok()) return std::move(connected).error();
  SystemRandom random;
  const std::string key = to_base64(random.bytes(16));
  HttpCall call{.target = target,
                .headers = {{"Upgrade", "websocket"}, {"Sec-WebSocket-Version", "13"}, {"Sec-WebSocket-Key", key}},
                .timeout = std::chrono::seconds(60)};
  RequestHead head = head_of(call);
  head.upgrade = true;
  Transfer transfer(**connected, call, head, {});
  DSEC_TRY(transfer.run());
  const HttpAnswer answer = transfer.parser().answer();
  if (answer.status != 101) return error_of(answer);
  const std::string* accept = answer.header("Sec-WebSocket-Accept");
  if (!accept || *accept != websocket_accept_key(key))
    return Error(ErrorCode::kUnavailable, "the server's WebSocket handshake is wrong");
  return WebSocketClient(std::move(connected).value(), transfer.parser().take_rest());
}

}  // namespace dsec::net
