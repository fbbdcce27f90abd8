#include "model/service.h"

#include <algorithm>
#include <boost/json.hpp>
#include <set>

namespace dsec::model {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxHosts = 64;
constexpr std::size_t kMaxAddresses = 64;
constexpr std::size_t kMaxEnv = 32;
constexpr std::size_t kMaxEnvBytes = 4096;
constexpr std::size_t kMaxCertificateBytes = 1 << 20;

bool is_service_name(std::string_view text) {
  if (text.empty() || text.size() > 63) return false;
  const auto lower = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  return lower(text.front()) && std::ranges::all_of(text, [&](char c) { return lower(c) || c == '_' || c == '-'; });
}

bool is_variable_name(std::string_view text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !text.empty() && text.size() <= 128 && letter(text.front()) &&
         std::ranges::all_of(text, [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}

// Only the shape: whoever decides on addresses parses them (edge/egress_policy.h).
bool looks_like_address(std::string_view text) {
  if (text.find(':') != std::string_view::npos) return true;
  return !text.empty() && std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || c == '.' || c == '/'; });
}

Result<std::string> text_field(const json::value& value, std::string_view name) {
  if (!value.is_string()) return invalid_argument(std::string(name) + " must be a string");
  return std::string(value.get_string());
}

Result<ServiceHost> host_from_json(const json::value& value) {
  ServiceHost host;
  if (value.is_string()) {
    host.host = std::string(value.get_string());
    return host;
  }
  if (!value.is_object()) return invalid_argument("hosts: each must be an object or a string");
  for (const auto& [key, field] : value.get_object()) {
    if (key == "host") {
      DSEC_ASSIGN(host.host, text_field(field, "hosts.host"));
    } else if (key == "port") {
      boost::system::error_code wrong;
      host.port = field.to_number<std::uint16_t>(wrong);  // refuses fractions and other ranges
      if (wrong) return invalid_argument("hosts.port must be 0 to 65535");
    } else if (key == "addresses") {
      if (!field.is_array()) return invalid_argument("hosts.addresses must be a list");
      for (const json::value& address : field.get_array()) {
        DSEC_ASSIGN(std::string text, text_field(address, "hosts.addresses"));
        host.addresses.push_back(std::move(text));
      }
    } else {
      return invalid_argument("unknown field hosts." + std::string(key));
    }
  }
  return host;
}

}  // namespace

Result<std::string> normal_host_name(std::string_view text, Wildcard wildcard) {
  const Error refused = invalid_argument("not a host name: '" + std::string(text.substr(0, 300)) + "'");
  std::string out;
  std::string_view rest = text;
  if (wildcard == Wildcard::kAllowed && rest.starts_with("*.")) {
    out = "*.";
    rest.remove_prefix(2);
  }
  if (rest.ends_with('.')) rest.remove_suffix(1);
  if (rest.empty() || rest.size() > 253) return refused;
  std::size_t label = 0;
  bool numeric = true;  // of the last label: such a name could be read as an address
  for (std::size_t i = 0; i < rest.size(); ++i) {
    char c = rest[i];
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '.') {
      if (label == 0 || rest[i - 1] == '-') return refused;
      label = 0;
      numeric = true;
    } else {
      const bool digit = c >= '0' && c <= '9';
      const bool letter = (c >= 'a' && c <= 'z') || c == '_';
      if (!digit && !letter && (c != '-' || label == 0)) return refused;
      if (!digit) numeric = false;
      if (++label > 63) return refused;
    }
    out.push_back(c);
  }
  if (label == 0 || out.back() == '-' || numeric) return refused;
  // 0x7f.1 and the like: a last label that a C library would take for a number.
  const std::size_t dot = out.rfind('.');
  if (std::string_view(out).substr(dot == std::string::npos ? 0 : dot + 1).starts_with("0x")) return refused;
  return out;
}

Result<ServiceDefinition> validate(ServiceDefinition service) {
  if (!is_service_name(service.name)) return invalid_argument("name must be [a-z0-9][a-z0-9_-]{0,62}");
  if (service.hosts.empty()) return invalid_argument("hosts must name at least one host");
  if (service.hosts.size() > kMaxHosts) return invalid_argument("hosts: at most 64");
  for (ServiceHost& host : service.hosts) {
    if (host.addresses.size() > kMaxAddresses) return invalid_argument("hosts.addresses: at most 64");
    for (const std::string& address : host.addresses)
      if (!looks_like_address(address)) return invalid_argument("hosts.addresses: not an address or CIDR: '" + address + "'");
    if (looks_like_address(host.host)) continue;
    DSEC_ASSIGN(host.host, normal_host_name(host.host, Wildcard::kAllowed).within("hosts.host"));
  }
  if (!service.via.empty()) {
    const std::size_t colon = service.via.rfind(':');
    const std::string_view port = colon == std::string::npos ? "" : std::string_view(service.via).substr(colon + 1);
    if (colon == 0 || port.empty() || port.size() > 5 || !std::ranges::all_of(port, [](char c) { return c >= '0' && c <= '9'; }) ||
        std::stoi(std::string(port)) > 65535)
      return invalid_argument("via must be host:port");
  }
  if (service.env.size() > kMaxEnv) return invalid_argument("env: at most 32 variables");
  for (const auto& [name, value] : service.env) {
    if (!is_variable_name(name)) return invalid_argument("env: not a variable name: '" + name + "'");
    if (value.size() > kMaxEnvBytes || value.find('\0') != std::string::npos) return invalid_argument("env: the value of " + name + " is too long");
  }
  if (service.ca_certificates.size() > kMaxCertificateBytes) return invalid_argument("ca_certificates: at most 1 MiB");
  return service;
}

json::value to_json(const ServiceDefinition& service) {
  json::array hosts;
  for (const ServiceHost& host : service.hosts) {
    json::object one{{"host", host.host}, {"port", host.port}};
    if (!host.addresses.empty()) one["addresses"] = json::array(host.addresses.begin(), host.addresses.end());
    hosts.push_back(std::move(one));
  }
  json::object env;
  for (const auto& [name, value] : service.env) env[name] = value;
  return json::object{{"name", service.name},
                      {"hosts", std::move(hosts)},
                      {"via", service.via},
                      {"env", std::move(env)},
                      {"ca_certificates", service.ca_certificates},
                      {"source", service.source}};
}

Result<ServiceDefinition> service_from_json(const json::value& value) {
  if (!value.is_object()) return invalid_argument("a service must be an object");
  ServiceDefinition service;
  for (const auto& [key, field] : value.get_object()) {
    if (key == "name") {
      DSEC_ASSIGN(service.name, text_field(field, key));
    } else if (key == "via") {
      DSEC_ASSIGN(service.via, text_field(field, key));
    } else if (key == "ca_certificates") {
      DSEC_ASSIGN(service.ca_certificates, text_field(field, key));
    } else if (key == "source") {
      DSEC_ASSIGN(service.source, text_field(field, key));
    } else if (key == "hosts") {
      if (!field.is_array()) return invalid_argument("hosts must be a list");
      for (const json::value& one : field.get_array()) {
        DSEC_ASSIGN(ServiceHost host, host_from_json(one));
        service.hosts.push_back(std::move(host));
      }
    } else if (key == "env") {
      if (!field.is_object()) return invalid_argument("env must be an object");
      for (const auto& [name, text] : field.get_object()) {
        DSEC_ASSIGN(service.env[std::string(name)], text_field(text, "env"));
      }
    } else {
      return invalid_argument("unknown field " + std::string(key));
    }
  }
  return validate(std::move(service));
}

}  // namespace dsec::model
