#include "image/registry_reference.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "model/layer.h"

namespace dsec::image {

namespace {

constexpr std::size_t kLongest = 255;

bool is_lower(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }
bool is_word(char c) { return is_lower(c) || (c >= 'A' && c <= 'Z') || c == '_'; }

bool is_host(std::string_view text) {
  return !text.empty() && is_lower(text.front()) && is_lower(text.back()) && std::ranges::all_of(text, [](char c) { return is_lower(c) || c == '.' || c == '-'; });
}

bool is_path(std::string_view text) {
  if (text.empty() || text.find("//") != std::string_view::npos || text.find("..") != std::string_view::npos) return false;
  return is_lower(text.front()) && is_lower(text.back()) && std::ranges::all_of(text, [](char c) { return is_lower(c) || c == '.' || c == '_' || c == '-' || c == '/'; });
}

bool is_tag(std::string_view text) {
  return !text.empty() && text.size() <= 128 && is_word(text.front()) && std::ranges::all_of(text, [](char c) { return is_word(c) || c == '.' || c == '-'; });
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

struct HostPort {
  std::string host;
  std::uint16_t port = 0;  // 0: none is said
};

Result<HostPort> parse_host(std::string_view text) {
  HostPort out;
  const std::size_t colon = text.rfind(':');
  out.host = lower(text.substr(0, colon));
  if (!is_host(out.host)) return invalid_argument("not a registry's host: " + std::string(text.substr(0, 100)));
  if (colon == std::string_view::npos) return out;
  const std::string_view digits = text.substr(colon + 1);
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), out.port);
  if (failed != std::errc() || end != digits.data() + digits.size() || out.port == 0) return invalid_argument("not a port: " + std::string(digits.substr(0, 20)));
  return out;
}

}  // namespace

std::string RegistryReference::text() const { return host + "/" + repository + (digest.empty() ? ":" + tag : "@" + digest); }

Result<RegistryReference> parse_registry_reference(std::string_view text) {
  if (text.size() > kLongest * 2) return invalid_argument("source: the reference is too long");
  RegistryReference out{.host = "", .repository = "", .tag = "latest", .digest = ""};
  std::string_view rest = text;
  if (const std::size_t at = rest.find('@'); at != std::string_view::npos) {
    out.digest = rest.substr(at + 1);
    out.tag.clear();
    rest = rest.substr(0, at);
    if (!model::is_digest(out.digest)) return invalid_argument("source: not a sha256 digest: " + out.digest.substr(0, 100));
  }
  const std::size_t slash = rest.find('/');
  const std::string_view first = rest.substr(0, slash);
  if (slash == std::string_view::npos || (first.find_first_of(".:") == std::string_view::npos && first != "localhost"))
    return invalid_argument("source: say which registry: docker://HOST/NAME:TAG");
  DSEC_ASSIGN(const HostPort host, parse_host(first).within("source"));
  out.host = host.host + (host.port == 0 ? "" : ":" + std::to_string(host.port));
  rest = rest.substr(slash + 1);
  if (const std::size_t colon = rest.rfind(':'); colon != std::string_view::npos) {
    if (!is_tag(rest.substr(colon + 1))) return invalid_argument("source: not a tag: " + std::string(rest.substr(colon + 1).substr(0, 100)));
    if (out.digest.empty()) out.tag = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
  }
  if (rest.size() > kLongest || !is_path(rest)) return invalid_argument("source: not an image's name: " + std::string(rest.substr(0, 100)));
  out.repository = rest;
  return out;
}

bool AllowedRegistry::is_literal() const {
  in_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1;
}

Result<AllowedRegistry> parse_allowed_registry(std::string_view text) {
  const bool plain = text.starts_with("http://");
  if (plain) text.remove_prefix(sizeof "http://" - 1);
  if (text.starts_with("https://")) text.remove_prefix(sizeof "https://" - 1);
  DSEC_ASSIGN(const HostPort parsed, parse_host(text).within("--allow-registry"));
  const std::uint16_t port = parsed.port != 0 ? parsed.port : plain ? 80 : 443;
  return AllowedRegistry{parsed.host, port, plain};
}

Result<AllowedRegistry> find_allowed(const std::vector<AllowedRegistry>& allowed, const RegistryReference& reference) {
  const std::size_t colon = reference.host.find(':');
  const std::string host = reference.host.substr(0, colon);
  for (const AllowedRegistry& one : allowed) {
    const std::string port = colon == std::string::npos ? (one.plain_http ? "80" : "443") : reference.host.substr(colon + 1);
    if (one.host == host && std::to_string(one.port) == port) return one;
  }
  return Error(ErrorCode::kPermissionDenied, "registry " + reference.host + " is not allowed on this node; its operator allows it by `dsec serve --allow-registry " + reference.host + "`");
}

}  // namespace dsec::image
