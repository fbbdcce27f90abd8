#include "edge/egress_http.h"

#include <algorithm>

namespace dsec::edge {
namespace {

constexpr std::size_t kMaxFields = 128;
constexpr std::size_t kMaxControlBytes = 16 << 10;

bool is_token(std::string_view text) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || kOthers.find(c) != std::string_view::npos;
  });
}

bool is_field_value(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c == '\t' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f); });
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool same(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

std::vector<std::string_view> list_of(std::string_view value) {
  std::vector<std::string_view> out;
  for (;;) {
    const std::size_t comma = value.find(',');
    const std::string_view item = trim(value.substr(0, comma));
    if (!item.empty()) out.push_back(item);
    if (comma == std::string_view::npos) return out;
    value.remove_prefix(comma + 1);
  }
}

std::optional<std::uint64_t> decimal(std::string_view text, std::size_t max_digits) {
  if (text.empty() || text.size() > max_digits || !std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; })) return std::nullopt;
  std::uint64_t value = 0;
  for (const char c : text) value = value * 10 + static_cast<std::uint64_t>(c - '0');
  return value;
}

struct Head {
  std::string_view first;
  HttpFields fields;
};

Result<Head> split(std::string_view head) {
  if (!head.ends_with("\r\n\r\n")) return invalid_argument("the head does not end");
  head.remove_suffix(2);
  Head out;
  bool first = true;
  while (!head.empty()) {
    const std::size_t end = head.find("\r\n");
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end + 2);
    if (!is_field_value(line)) return invalid_argument("a control character in the head");
    if (first) {
      out.first = line;
      first = false;
      continue;
    }
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) return invalid_argument("a malformed header line");
    if (out.fields.size() == kMaxFields) return invalid_argument("too many header lines");
    out.fields.emplace_back(line.substr(0, colon), trim(line.substr(colon + 1)));
  }
  return out;
}

// What concerns this connection and not the message. Host and the framing are
// written anew.
bool is_hop_by_hop(std::string_view name) {
  constexpr std::string_view kNames[] = {"connection", "proxy-connection", "keep-alive", "proxy-authorization", "proxy-authenticate",
                                         "te", "trailer", "transfer-encoding", "upgrade", "expect", "host", "content-length", "http2-settings"};
  return std::ranges::any_of(kNames, [&](std::string_view one) { return same(one, name); });
}

struct Connection {
  std::vector<std::string> nominated;
  bool close = false;
  bool keep_alive = false;
};

Connection connection_of(const HttpFields& fields) {
  Connection out;
  for (const auto& [name, value] : fields) {
    if (!same(name, "connection") && !same(name, "proxy-connection")) continue;
    for (const std::string_view item : list_of(value)) {
      if (same(item, "close")) out.close = true;
      if (same(item, "keep-alive")) out.keep_alive = true;
      out.nominated.emplace_back(item);
    }
  }
  return out;
}

HttpFields end_to_end(const HttpFields& fields, const Connection& connection) {
  HttpFields out;
  for (const auto& field : fields)
    if (!is_hop_by_hop(field.first) && std::ranges::none_of(connection.nominated, [&](const std::string& one) { return same(one, field.first); }))
      out.push_back(field);
  return out;
}

// The framing that the fields tell; kNone when they tell none.
Result<HttpFraming> framing_of(const HttpFields& fields, bool http_1_0) {
  HttpFraming framing;
  bool has_length = false;
  bool chunked = false;
  for (const auto& [name, value] : fields) {
    if (same(name, "content-length")) {
      const std::optional<std::uint64_t> length = decimal(value, 18);
      if (!length || has_length) return invalid_argument("a malformed or repeated Content-Length");
      has_length = true;
      framing = {.kind = HttpFraming::Kind::kLength, .length = *length};
    } else if (same(name, "transfer-encoding")) {
      if (chunked || !same(value, "chunked")) return invalid_argument("a Transfer-Encoding other than chunked");
      chunked = true;
    }
  }
  if (chunked && has_length) return invalid_argument("both Content-Length and Transfer-Encoding");
  if (chunked && http_1_0) return invalid_argument("Transfer-Encoding in HTTP/1.0");
  if (chunked) framing = {.kind = HttpFraming::Kind::kChunked};
  return framing;
}

// "host", "host:port", "[v6]:port". No user, no spaces; the host is judged later.
Result<Destination> parse_authority(std::string_view text, std::uint16_t default_port) {
  const Error malformed = invalid_argument("a malformed host '" + std::string(text.substr(0, 300)) + "'");
  std::string_view host = text;
  std::string_view port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) return malformed;
    host = text.substr(0, end + 1);
    if (end + 1 < text.size()) {
      if (text[end + 1] != ':') return malformed;
      port = text.substr(end + 2);
      if (port.empty()) return malformed;
    }
  } else if (const std::size_t colon = text.find(':'); colon != std::string_view::npos) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (port.empty()) return malformed;
  }
  if (host.empty() || host.find('@') != std::string_view::npos) return malformed;
  Destination out{.host = std::string(host), .port = default_port};
  if (!port.empty()) {
    const std::optional<std::uint64_t> number = decimal(port, 5);
    if (!number || *number == 0 || *number > 65535) return malformed;
    out.port = static_cast<std::uint16_t>(*number);
  }
  return out;
}

bool same_host(std::string_view a, std::string_view b) {
  if (a.ends_with('.')) a.remove_suffix(1);
  if (b.ends_with('.')) b.remove_suffix(1);
  return same(a, b);
}

void put_fields(std::string& out, const HttpFields& fields) {
  for (const auto& [name, value] : fields) out.append(name).append(": ").append(value).append("\r\n");
}

void put_framing(std::string& out, const HttpFraming& framing) {
  if (framing.kind == HttpFraming::Kind::kLength) out += "Content-Length: " + std::to_string(framing.length) + "\r\n";
  if (framing.kind == HttpFraming::Kind::kChunked) out += "Transfer-Encoding: chunked\r\n";
}

}  // namespace

Result<ProxyRequest> parse_proxy_request(std::string_view text) {
  DSEC_ASSIGN(const Head head, split(text));
  const std::size_t first_space = head.first.find(' ');
  const std::size_t last_space = head.first.rfind(' ');
  if (first_space == std::string_view::npos || first_space == last_space) return invalid_argument("a malformed request line");
  ProxyRequest request;
  request.method = std::string(head.first.substr(0, first_space));
  const std::string_view target = head.first.substr(first_space + 1, last_space - first_space - 1);
  const std::string_view version = head.first.substr(last_space + 1);
  if (!is_token(request.method)) return invalid_argument("a malformed method");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return invalid_argument("not HTTP/1.1");
  if (target.empty() || !std::ranges::all_of(target, [](char c) { return c > ' ' && c < 0x7f; })) return invalid_argument("a malformed target");
  request.http_1_0 = version == "HTTP/1.0";
  request.connect = request.method == "CONNECT";

  std::uint16_t default_port = 80;
  if (request.connect) {
    default_port = 443;
    DSEC_ASSIGN(request.destination, parse_authority(target, 0));
    if (request.destination.port == 0) return invalid_argument("CONNECT needs host:port");
  } else {
    constexpr std::string_view kScheme = "http://";
    if (!same(target.substr(0, kScheme.size()), kScheme)) {
      if (target.find("://") != std::string_view::npos) return Error(ErrorCode::kUnsupported, "only http:// targets are taken; use CONNECT for others");
      return invalid_argument("this is a proxy: the target must be absolute (http://host/path)");
    }
    if (target.find('#') != std::string_view::npos) return invalid_argument("a fragment in the target");
    const std::string_view rest = target.substr(kScheme.size());
    const std::size_t end = std::min(rest.find('/'), rest.find('?'));
    DSEC_ASSIGN(request.destination, parse_authority(rest.substr(0, end), default_port));
    request.target = end == std::string_view::npos ? "/" : std::string(rest.substr(end));
    if (request.target.front() == '?') request.target.insert(0, "/");
  }

  std::size_t hosts = 0;
  for (const auto& [name, value] : head.fields) {
    if (same(name, "expect")) {
      if (!same(value, "100-continue")) return invalid_argument("an unknown Expect");
      request.expects_continue = !request.http_1_0;
    }
    if (!same(name, "host")) continue;
    if (++hosts > 1) return invalid_argument("more than one Host");
    DSEC_ASSIGN(const Destination host, parse_authority(value, request.connect ? request.destination.port : default_port));
    if (!same_host(host.host, request.destination.host) || host.port != request.destination.port)
      return invalid_argument("Host '" + value + "' is not the target's host");
  }
  if (hosts == 0 && !request.http_1_0) return invalid_argument("no Host");

  DSEC_ASSIGN(request.body, framing_of(head.fields, request.http_1_0));
  if (request.connect && request.body.kind != HttpFraming::Kind::kNone && request.body.length != 0) return invalid_argument("CONNECT with a body");
  const Connection connection = connection_of(head.fields);
  request.keep_alive = request.http_1_0 ? connection.keep_alive && !connection.close : !connection.close;
  request.fields = end_to_end(head.fields, connection);
  return request;
}

std::string authority(const Destination& destination, std::uint16_t default_port) {
  const bool bare_v6 = destination.host.find(':') != std::string::npos && !destination.host.starts_with('[');
  std::string out = bare_v6 ? "[" + destination.host + "]" : destination.host;
  if (destination.port != default_port) out += ":" + std::to_string(destination.port);
  return out;
}

std::string upstream_head(const ProxyRequest& request, TargetForm form) {
  const std::string host = authority(request.destination, 80);
  std::string out = request.method + " ";
  if (form == TargetForm::kAbsolute) out += "http://" + host;
  // An old client could not read a chunked answer.
  out += request.target + (request.http_1_0 ? " HTTP/1.0" : " HTTP/1.1") + "\r\nHost: " + host + "\r\n";
  put_fields(out, request.fields);
  put_framing(out, request.body);
  return out + "Connection: close\r\n\r\n";
}

Result<ProxyResponse> parse_proxy_response(std::string_view text, std::string_view method) {
  DSEC_ASSIGN(const Head head, split(text));
  const std::string_view line = head.first;
  if (!line.starts_with("HTTP/1.") || line.size() < 12 || (line[7] != '0' && line[7] != '1') || line[8] != ' ')
    return invalid_argument("not an HTTP/1 answer");
  const std::optional<std::uint64_t> status = decimal(line.substr(9, 3), 3);
  if (!status || *status < 100 || (line.size() > 12 && line[12] != ' ')) return invalid_argument("a malformed status line");
  ProxyResponse response;
  response.status = static_cast<int>(*status);
  if (line.size() > 13) response.reason = std::string(line.substr(13));
  DSEC_ASSIGN(response.body, framing_of(head.fields, line[7] == '0'));
  const bool bodyless = response.status < 200 || response.status == 204 || response.status == 304 || method == "HEAD";
  if (response.body.kind == HttpFraming::Kind::kNone && !bodyless) response.body.kind = HttpFraming::Kind::kUntilClose;
  response.fields = end_to_end(head.fields, connection_of(head.fields));
  // A HEAD's or a 304's length is information, not framing.
  if (bodyless) {
    if (response.body.kind == HttpFraming::Kind::kLength && response.status >= 200 && response.status != 204)
      response.fields.emplace_back("Content-Length", std::to_string(response.body.length));
    response.body = {};
  }
  return response;
}

std::string client_head(const ProxyResponse& response, bool keep_alive, bool http_1_0) {
  std::string out = (http_1_0 ? "HTTP/1.0 " : "HTTP/1.1 ") + std::to_string(response.status) + " " + response.reason + "\r\n";
  put_fields(out, response.fields);
  put_framing(out, response.body);
  if (response.status >= 200) out += keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  return out + "\r\n";
}

std::size_t ChunkScanner::feed(std::string_view bytes) {
  std::size_t at = 0;
  while (at < bytes.size() && !done() && !broken()) {
    if (state_ == State::kData) {
      const std::size_t part = static_cast<std::size_t>(std::min<std::uint64_t>(size_, bytes.size() - at));
      at += part;
      size_ -= part;
      if (size_ == 0) state_ = State::kDataCr;
      continue;
    }
    state_ = step(bytes[at]);
    if (!broken()) ++at;
  }
  return at;
}

ChunkScanner::State ChunkScanner::step(char c) {
  const auto expect = [c](char wanted, State next) { return c == wanted ? next : State::kBroken; };
  switch (state_) {
    case State::kSize: {
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
      if (digit >= 0) {
        if (++digits_ > 15) return State::kBroken;
        size_ = size_ << 4 | static_cast<std::uint64_t>(digit);
        return State::kSize;
      }
      if (digits_ == 0) return State::kBroken;
      if (c == ';') return State::kExtension;
      return expect('\r', State::kSizeLf);
    }
    case State::kExtension:
      if (++control_ > kMaxControlBytes || c == '\n') return State::kBroken;
      return c == '\r' ? State::kSizeLf : State::kExtension;
    case State::kSizeLf:
      if (c != '\n') return State::kBroken;
      digits_ = 0;
      return size_ == 0 ? State::kLineStart : State::kData;
    case State::kDataCr:
      return expect('\r', State::kDataLf);
    case State::kDataLf:
      return expect('\n', State::kSize);
    case State::kLineStart:
      if (c == '\n') return State::kBroken;
      return c == '\r' ? State::kEndLf : State::kTrailer;
    case State::kTrailer:
      if (++control_ > kMaxControlBytes || c == '\n') return State::kBroken;
      return c == '\r' ? State::kTrailerLf : State::kTrailer;
    case State::kTrailerLf:
      return expect('\n', State::kLineStart);
    case State::kEndLf:
      return expect('\n', State::kDone);
    case State::kData:
    case State::kDone:
    case State::kBroken:
      return state_;
  }
  return State::kBroken;
}

}  // namespace dsec::edge
