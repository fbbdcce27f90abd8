#include "net/header_rules.h"

#include <algorithm>
#include <array>

#include "net/http_text.h"

namespace dsec::net {

namespace {
bool starts_with_name(std::string_view name, std::string_view prefix) {
  return name.size() >= prefix.size() && same_name(name.substr(0, prefix.size()), prefix);
}

template <std::size_t kCount>
bool is_one_of(std::string_view name, const std::array<std::string_view, kCount>& names) {
  return std::ranges::any_of(names, [&](std::string_view one) { return same_name(name, one); });
}

constexpr std::array<std::string_view, 10> kHopByHop = {"Connection", "Keep-Alive",        "Proxy-Connection", "TE",     "Trailer",
                                                        "Upgrade",    "Transfer-Encoding", "Content-Length",   "Expect", "HTTP2-Settings"};
// X-Access-Token and the E2b- names are the tokens of the E2B protocol.
constexpr std::array<std::string_view, 6> kCredentials = {"Authorization", "Proxy-Authorization", "X-API-Key", "Cookie", "X-Access-Token", "Forwarded"};
constexpr std::array<std::string_view, 4> kCredentialPrefixes = {"X-Forwarded-", "X-Dsec-", "E2b-", "X-E2b-"};
// What would change the API's own origin in a browser.
constexpr std::array<std::string_view, 9> kOriginState = {"Set-Cookie",   "Service-Worker-Allowed", "Clear-Site-Data", "Strict-Transport-Security", "Alt-Svc",
                                                          "Refresh", "Content-Security-Policy", "Report-To", "NEL"};

// A cookie for a parent domain would reach the API and other sandboxes.
bool names_a_domain(std::string_view cookie) {
  for (std::size_t at = cookie.find(';'); at != std::string_view::npos; at = cookie.find(';', at + 1)) {
    std::string_view attribute = cookie.substr(at + 1);
    while (attribute.starts_with(' ') || attribute.starts_with('\t')) attribute.remove_prefix(1);
    if (starts_with_name(attribute, "domain")) return true;
  }
  return false;
}
}  // namespace

bool is_hop_by_hop(std::string_view name, const HeaderList& headers) {
  if (is_one_of(name, kHopByHop) || starts_with_name(name, "Proxy-")) return true;
  return std::ranges::any_of(headers, [&](const auto& header) { return same_name(header.first, "Connection") && has_token(header.second, name); });
}

Result<void> check_port_request(const HttpRequest& request, PortAddress address) {
  if (address == PortAddress::kHost) return {};
  // The browser sends these by itself; no script can leave them out or set them.
  const std::string* mode = request.header("Sec-Fetch-Mode");
  const std::string* destination = request.header("Sec-Fetch-Dest");
  const bool frame = destination && (*destination == "document" || *destination == "iframe" || *destination == "frame" || *destination == "embed" ||
                                     *destination == "object" || destination->ends_with("worker"));
  if ((mode && *mode == "navigate") || frame)
    return Error(ErrorCode::kPermissionDenied, "a browser opens a sandbox's port by its own host name, {port}-{id}.localhost, not by this path");
  return {};
}

HeaderList headers_into_sandbox(const HttpRequest& request, const std::string& host) {
  HeaderList out;
  out.emplace_back("Host", host);
  for (const auto& [name, value] : request.headers) {
    if (same_name(name, "Host") || is_hop_by_hop(name, request.headers) || is_one_of(name, kCredentials)) continue;
    if (std::ranges::any_of(kCredentialPrefixes, [&, &text = name](std::string_view prefix) { return starts_with_name(text, prefix); })) continue;
    out.emplace_back(name, value);
  }
  return out;
}

HeaderList headers_out_of_sandbox(const HeaderList& headers, PortAddress address) {
  HeaderList out;
  for (const auto& [name, value] : headers) {
    if (is_hop_by_hop(name, headers)) continue;
    if (address == PortAddress::kPath && (is_one_of(name, kOriginState) || starts_with_name(name, "Access-Control-"))) continue;
    if (same_name(name, "Set-Cookie") && names_a_domain(value)) continue;
    out.emplace_back(name, value);
  }
  if (address == PortAddress::kPath) out.emplace_back("Content-Security-Policy", "sandbox");
  return out;
}

}  // namespace dsec::net
