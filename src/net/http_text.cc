#include "net/http_text.h"

#include <array>
#include <ctime>

namespace dsec::net {

namespace {
std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::string_view reason(int status) {
  switch (status) {
    case 100: return "Continue";
    case 101: return "Switching Protocols";
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 206: return "Partial Content";
    case 301: return "Moved Permanently";
    case 302: return "Found";
    case 303: return "See Other";
    case 304: return "Not Modified";
    case 307: return "Temporary Redirect";
    case 308: return "Permanent Redirect";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 410: return "Gone";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 421: return "Misdirected Request";
    case 426: return "Upgrade Required";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 499: return "Client Closed Request";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 502: return "Bad Gateway";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Status";
  }
}
}  // namespace

Result<void> parse_target(HttpRequest& request) {
  constexpr std::size_t kMaxSegments = 256;
  constexpr std::size_t kMaxParameters = 256;
  std::string_view target = request.target;
  request.path.clear();
  request.segments.clear();
  request.query.clear();
  // CONNECT has host:port, OPTIONS may have *: no path in either.
  if (request.method == "CONNECT" || target == "*") return {};
  if (!target.starts_with('/')) {
    const std::size_t scheme = target.find("://");
    if (scheme == std::string_view::npos) return invalid_argument("the request target must start with /");
    const std::size_t slash = target.find_first_of("/?", scheme + 3);
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  const std::size_t question = target.find('?');
  const std::string_view raw_path = target.substr(0, question);
  std::optional<std::string> path = percent_decode(raw_path, false);
  if (!path) return invalid_argument("the request path holds a broken % escape");
  request.path = *std::move(path);
  for (std::size_t at = raw_path.starts_with('/') ? 1 : 0; at < raw_path.size();) {
    const std::size_t end = std::min(raw_path.find('/', at), raw_path.size());
    request.segments.push_back(percent_decode(raw_path.substr(at, end - at), false).value_or(""));
    if (request.segments.size() > kMaxSegments) return invalid_argument("the request path has too many segments");
    at = end + 1;
  }
  if (question == std::string_view::npos) return {};
  std::string_view query = target.substr(question + 1);
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (pair.empty()) continue;
    const std::size_t equals = pair.find('=');
    std::optional<std::string> name = percent_decode(pair.substr(0, equals), true);
    std::optional<std::string> value = percent_decode(equals == std::string_view::npos ? std::string_view() : pair.substr(equals + 1), true);
    if (!name || !value) return invalid_argument("the query holds a broken % escape");
    if (request.query.size() == kMaxParameters) return invalid_argument("the query has too many parameters");
    request.query.emplace_back(*std::move(name), *std::move(value));
  }
  return {};
}

std::string status_line(int status) {
  return "HTTP/1.1 " + std::to_string(status) + " " + std::string(reason(status)) + "\r\n";
}

bool has_token(std::string_view list, std::string_view token) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    std::string_view item = list.substr(0, comma);
    item = trim(item.substr(0, item.find(';')));
    if (same_name(item, token)) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

std::string http_date(std::int64_t unix_seconds) {
  const std::time_t seconds = unix_seconds;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 64> text{};
  const std::size_t n = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return {text.data(), n};
}

const std::string* HttpRequest::header(std::string_view name) const { return find_header(headers, name); }

const std::string* HttpRequest::parameter(std::string_view name) const {
  for (const auto& [key, value] : query)
    if (key == name) return &value;
  return nullptr;
}

}  // namespace dsec::net
