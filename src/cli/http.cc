#include "cli/http.h"

#include <strings.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>

#include "base/encoding.h"
#include "base/random.h"

namespace dsec::cli {
namespace {

constexpr std::size_t kMaxHead = 256 << 10;
constexpr std::size_t kMaxBody = 256 << 20;  // of an answer that is kept in memory

bool same_name(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

Error bad_answer(const std::string& what) { return Error(ErrorCode::kUnavailable, "the server's answer is no HTTP: " + what); }

// Reads one answer from a wire, whose bytes come in any portions.
class AnswerReader {
 public:
  AnswerReader(Wire& wire, Duration patience) : wire_(wire), patience_(patience) {}

  Result<void> fill() {
    char part[64 << 10];
    DSEC_ASSIGN(const std::size_t got, wire_.read_some(part, sizeof part, Deadline::in(patience_)));
    buffer_.append(part, got);
    return {};
  }
  Result<std::string> line() {
    while (true) {
      const std::size_t end = buffer_.find("\r\n");
      if (end != std::string::npos) {
        std::string out = buffer_.substr(0, end);
        buffer_.erase(0, end + 2);
        return out;
      }
      if (buffer_.size() > kMaxHead) return bad_answer("a line without end");
      DSEC_TRY(fill());
    }
  }
  Result<HttpAnswer> head() {
    while (true) {
      DSEC_ASSIGN(const std::string status, line());
      HttpAnswer answer;
      if (!status.starts_with("HTTP/1.") || status.size() < 12) return bad_answer(status.substr(0, 60));
      std::from_chars(status.data() + 9, status.data() + 12, answer.status);
      std::size_t size = 0;
      while (true) {
        DSEC_ASSIGN(const std::string field, line());
        if (field.empty()) break;
        size += field.size();
        const std::size_t colon = field.find(':');
        if (colon == std::string::npos || size > kMaxHead) return bad_answer("headers");
        std::size_t begin = field.find_first_not_of(" \t", colon + 1);
        if (begin == std::string::npos) begin = field.size();
        answer.headers.emplace_back(field.substr(0, colon), field.substr(begin));
      }
      if (answer.status >= 200 || answer.status == 101) return answer;  // the 1xx before it say nothing to us
    }
  }
  Result<void> bytes(std::uint64_t count, const BodySink& sink) {
    while (count > 0) {
      if (buffer_.empty()) DSEC_TRY(fill());
      const std::size_t part = static_cast<std::size_t>(std::min<std::uint64_t>(count, buffer_.size()));
      DSEC_TRY(sink(std::string_view(buffer_).substr(0, part)));
      buffer_.erase(0, part);
      count -= part;
    }
    return {};
  }
  Result<void> chunks(const BodySink& sink) {
    while (true) {
      DSEC_ASSIGN(const std::string size_line, line());
      std::uint64_t size = 0;
      const auto parsed = std::from_chars(size_line.data(), size_line.data() + size_line.size(), size, 16);
      if (parsed.ec != std::errc()) return bad_answer("a chunk");
      if (size == 0) break;
      DSEC_TRY(bytes(size, sink));
      DSEC_ASSIGN(const std::string end, line());
      if (!end.empty()) return bad_answer("a chunk's end");
    }
    while (true) {
      DSEC_ASSIGN(const std::string trailer, line());
      if (trailer.empty()) return {};
    }
  }
  Result<void> until_closed(const BodySink& sink) {
    while (true) {
      DSEC_TRY(bytes(buffer_.size(), sink));
      if (auto more = fill(); !more.ok()) {
        if (more.error().code() == ErrorCode::kUnavailable) return {};
        return more;
      }
    }
  }
  std::string take_rest() { return std::move(buffer_); }

 private:
  Wire& wire_;
  const Duration patience_;
  std::string buffer_;
};

}  // namespace

const std::string* HttpAnswer::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (same_name(key, name)) return &value;
  return nullptr;
}

std::string percent_encode(std::string_view text) {
  static constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (kPlain.find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += '%';
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out;
}

HttpClient::HttpClient(ServerAddress address, std::string api_key) : address_(std::move(address)), api_key_(std::move(api_key)) {}

std::string HttpClient::head_of(const HttpCall& call, bool upgrade) const {
  std::string head = call.method + " " + address_.prefix + call.target + " HTTP/1.1\r\nHost: " + address_.authority() +
                     "\r\nUser-Agent: dsec-cli\r\nAccept: */*\r\n";
  if (!api_key_.empty()) head += "Authorization: Bearer " + api_key_ + "\r\n";
  for (const auto& [name, value] : call.headers) head += name + ": " + value + "\r\n";
  if (call.body_source) {
    head += "Transfer-Encoding: chunked\r\n";
  } else if (!call.body.empty() || (call.method != "GET" && call.method != "HEAD" && !upgrade)) {
    head += "Content-Length: " + std::to_string(call.body.size()) + "\r\n";
  }
  return head + "\r\n";
}

Result<HttpAnswer> HttpClient::exchange(Wire& wire, const HttpCall& call, const BodySink& sink, bool* answered, bool* keep) {
  DSEC_TRY(wire.write_all(head_of(call, false) + call.body, Deadline::in(call.timeout)));
  Result<void> sent;
  if (call.body_source) {
    while (sent.ok()) {
      DSEC_ASSIGN(const std::string part, call.body_source());
      char size[24];
      const auto written = std::to_chars(size, size + sizeof size, part.size(), 16);
      std::string chunk(size, static_cast<std::size_t>(written.ptr - size));
      chunk += "\r\n";
      chunk += part;
      chunk += "\r\n";
      sent = wire.write_all(chunk, Deadline::in(call.timeout));
      if (part.empty()) break;
    }
    // A server that refuses while the body is under way may have said why.
    if (!sent.ok() && sent.error().code() != ErrorCode::kUnavailable) return std::move(sent).error();
  }
  AnswerReader reader(wire, call.timeout);
  auto head = reader.head();
  if (!head.ok()) return sent.ok() ? std::move(head).error() : std::move(sent).error();
  *answered = true;
  HttpAnswer answer = std::move(head).value();
  const BodySink keep_body = [&answer](std::string_view part) -> Result<void> {
    if (answer.body.size() + part.size() > kMaxBody) return Error(ErrorCode::kTooLarge, "the answer is larger than 256 MiB");
    answer.body += part;
    return {};
  };
  const bool success = answer.status >= 200 && answer.status < 300;
  const BodySink& taker = sink && success ? sink : keep_body;
  const std::string* encoding = answer.header("Transfer-Encoding");
  const std::string* length = answer.header("Content-Length");
  const std::string* connection = answer.header("Connection");
  *keep = sent.ok() && !(connection && same_name(*connection, "close"));
  if (call.method == "HEAD" || answer.status == 204 || answer.status == 304) return answer;
  if (encoding && same_name(*encoding, "chunked")) {
    DSEC_TRY(reader.chunks(taker));
  } else if (length) {
    std::uint64_t count = 0;
    std::from_chars(length->data(), length->data() + length->size(), count);
    DSEC_TRY(reader.bytes(count, taker));
  } else {
    *keep = false;
    DSEC_TRY(reader.until_closed(taker));
  }
  return answer;
}

Result<HttpAnswer> HttpClient::call(const HttpCall& call, const BodySink& sink) {
  const auto connect = [this]() { return Wire::connect(address_, Deadline::in(std::chrono::seconds(10))); };
  bool reused = kept_ != nullptr;
  std::unique_ptr<Wire> wire = std::move(kept_);
  while (true) {
    if (!wire) {
      auto fresh = connect();
      if (!fresh.ok()) return std::move(fresh).error();
      wire = std::move(fresh).value();
    }
    bool answered = false;
    bool keep = false;
    auto answer = exchange(*wire, call, sink, &answered, &keep);
    if (!answer.ok() && reused && !answered && !call.body_source && answer.error().code() == ErrorCode::kUnavailable) {
      reused = false;
      wire.reset();
      continue;
    }
    if (answer.ok() && keep) kept_ = std::move(wire);
    return answer;
  }
}

Result<HttpClient::Upgraded> HttpClient::upgrade(const std::string& target) {
  auto connected = Wire::connect(address_, Deadline::in(std::chrono::seconds(10)));
  if (!connected.ok()) return std::move(connected).error();
  Upgraded out;
  out.wire = std::move(connected).value();
  SystemRandom random;
  HttpCall call;
  call.target = target;
  call.headers = {{"Connection", "Upgrade"},
                  {"Upgrade", "websocket"},
                  {"Sec-WebSocket-Version", "13"},
                  {"Sec-WebSocket-Key", to_base64(random.bytes(16))}};
  const Duration patience = std::chrono::seconds(60);
  DSEC_TRY(out.wire->write_all(head_of(call, true), Deadline::in(patience)));
  AnswerReader reader(*out.wire, patience);
  DSEC_ASSIGN(HttpAnswer answer, reader.head());
  if (answer.status != 101) {
    const BodySink keep = [&answer](std::string_view part) -> Result<void> {
      answer.body += part;
      return {};
    };
    if (const std::string* length = answer.header("Content-Length")) {
      std::uint64_t count = 0;
      std::from_chars(length->data(), length->data() + length->size(), count);
      DSEC_TRY(reader.bytes(std::min<std::uint64_t>(count, 1 << 20), keep));
    }
    return error_of(answer);
  }
  out.already_read = reader.take_rest();
  return out;
}

Error error_of(const HttpAnswer& answer) {
  ErrorCode code = ErrorCode::kInternal;
  std::string message = "HTTP " + std::to_string(answer.status);
  std::string name;
  boost::system::error_code failure;
  const boost::json::value body = boost::json::parse(answer.body, failure);
  const boost::json::value* error = !failure && body.is_object() ? body.get_object().if_contains("error") : nullptr;
  if (error && error->is_object()) {
    if (const auto* text = error->get_object().if_contains("message"); text && text->is_string())
      message = std::string(text->get_string());
    if (const auto* text = error->get_object().if_contains("code"); text && text->is_string())
      name = std::string(text->get_string());
  } else if (!answer.body.empty()) {
    message += ": " + answer.body.substr(0, std::min<std::size_t>(200, answer.body.find_last_not_of("\r\n \t") + 1));
  }
  bool known = false;
  for (int number = 1; number <= static_cast<int>(ErrorCode::kDeadlineExceeded); ++number) {
    const ErrorTraits& row = traits(static_cast<ErrorCode>(number));
    if (name.empty() ? row.http_status == answer.status && !known : row.name == name) {
      code = static_cast<ErrorCode>(number);
      known = true;
    }
  }
  return Error(code, std::move(message));
}

}  // namespace dsec::cli
