#include "apiserver/host_check.h"

#include <algorithm>
#include <charconv>

namespace dsec::apiserver {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

// "Name:7780" -> "name"; "[::1]:7780" -> "::1".
std::string without_port(std::string_view host) {
  if (host.starts_with('[')) {
    const auto end = host.find(']');
    return lower(host.substr(1, end == std::string_view::npos ? end : end - 1));
  }
  return lower(host.substr(0, host.find(':')));
}

// "8000-abc….localhost" under the domain "localhost".
bool parse_port_host(const std::string& host, const std::string& domain, Addressee& out) {
  if (!host.ends_with("." + domain)) return false;
  const std::string label = host.substr(0, host.size() - domain.size() - 1);
  const auto dash = label.find('-');
  if (dash == std::string::npos || label.find('.') != std::string::npos) return false;
  unsigned port = 0;
  const auto [end, error] = std::from_chars(label.data(), label.data() + dash, port);
  if (error != std::errc() || end != label.data() + dash || port == 0 || port > 65535) return false;
  out = {true, label.substr(dash + 1), static_cast<std::uint16_t>(port)};
  return !out.sandbox_id.empty();
}

}  // namespace

Result<Addressee> addressee_of(const net::HttpRequest& request, const HostRules& rules) {
  const std::string* host = request.header("Host");
  if (host == nullptr) return invalid_argument("the Host header is missing");
  const std::string name = without_port(*host);
  Addressee to;
  if (parse_port_host(name, rules.port_domain, to)) return to;

  const bool ours = name == "localhost" || name == "127.0.0.1" || name == "::1" || name == lower(rules.listen_address) ||
                    std::find(rules.names.begin(), rules.names.end(), name) != rules.names.end();
  if (!ours) return Error(ErrorCode::kPermissionDenied, "this server has no name " + name);
  if (const std::string* origin = request.header("Origin")) {
    if (lower(*origin) != "http://" + lower(*host) && lower(*origin) != "https://" + lower(*host))
      return Error(ErrorCode::kPermissionDenied, "requests of pages from another origin are refused");
  }
  if (const std::string* site = request.header("Sec-Fetch-Site"); site != nullptr && (*site == "cross-site" || *site == "same-site"))
    return Error(ErrorCode::kPermissionDenied, "requests of pages from another origin are refused");
  return to;
}

}  // namespace dsec::apiserver
