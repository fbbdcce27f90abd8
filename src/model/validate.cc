#include <algorithm>
#include <array>
#include <cmath>

#include "base/encoding.h"
#include "model/sandbox.h"

namespace dsec::model {

namespace {
constexpr std::size_t kMaxLabels = 64;
constexpr std::size_t kMaxEnv = 1024;
constexpr std::size_t kMaxEnvBytes = 256 << 10;
constexpr std::size_t kMaxArguments = 1024;
constexpr std::size_t kMaxRules = 256;
constexpr std::size_t kMaxLayersOfAKind = 16;
constexpr std::int64_t kMaxSeconds = 10LL * 365 * 86400;

bool is_alphanumeric(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= 63 && is_alphanumeric(name.front()) &&
         std::ranges::all_of(name, [](char c) { return is_alphanumeric(c) || c == '.' || c == '_' || c == '-'; });
}

// The shape of a sandbox id. No name may have it: both stand in the same place of a URL.
bool looks_like_id(std::string_view name) {
  return name.size() == 26 && std::ranges::all_of(name, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '2' && c <= '7'); });
}

bool is_hostname(std::string_view name) {
  return !name.empty() && name.size() <= 63 && is_alphanumeric(name.front()) && is_alphanumeric(name.back()) &&
         std::ranges::all_of(name, [](char c) { return is_alphanumeric(c) || c == '-' || c == '.'; });
}

bool is_label_key(std::string_view key) {
  return !key.empty() && key.size() <= 128 && is_alphanumeric(key.front()) &&
         std::ranges::all_of(key, [](char c) { return is_alphanumeric(c) || c == '.' || c == '_' || c == '/' || c == '-'; });
}

bool is_plain_text(std::string_view text, std::size_t limit) {
  return text.size() <= limit && is_utf8(text) && std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

Result<void> check_env(const std::map<std::string, std::string>& env, const std::string& field) {
  std::size_t bytes = 0;
  if (env.size() > kMaxEnv) return invalid_argument(field + ": more than 1024 variables");
  for (const auto& [name, value] : env) {
    if (name.empty() || name.find('=') != std::string::npos || name.find('\0') != std::string::npos)
      return invalid_argument(field + ": \"" + name.substr(0, 64) + "\" cannot be the name of a variable");
    if (value.find('\0') != std::string::npos) return invalid_argument(field + "." + name + ": holds a NUL byte");
    bytes += name.size() + value.size() + 2;
  }
  if (bytes > kMaxEnvBytes) return invalid_argument(field + ": more than 256 KiB");
  return {};
}

Result<void> check_range(std::string_view field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most)
    return invalid_argument(std::string(field) + ": must be between " + std::to_string(least) + " and " + std::to_string(most));
  return {};
}

Result<void> check_layer_name(std::string_view field, std::string_view text) {
  if (text.empty() || is_digest(text)) return {};
  if (Result<RefName> ref = parse_ref(text); !ref.ok()) return std::move(ref).within(field).error();
  return {};
}

Result<void> check_layer_names(std::string_view field, const std::vector<std::string>& names) {
  if (names.size() > kMaxLayersOfAKind) return invalid_argument(std::string(field) + ": more than 16");
  for (const std::string& name : names) {
    if (name.empty()) return invalid_argument(std::string(field) + ": an empty name");
    DSEC_TRY(check_layer_name(field, name));
  }
  return {};
}

bool is_domain(std::string_view domain) {
  if (domain.starts_with("*.")) domain.remove_prefix(2);
  if (domain.empty() || domain.size() > 253 || !is_alphanumeric(domain.front()) || !is_alphanumeric(domain.back())) return false;
  return domain.find("..") == std::string_view::npos &&
         std::ranges::all_of(domain, [](char c) { return is_alphanumeric(c) || c == '-' || c == '.' || c == '_'; });
}

// A shape check; the proxy parses it by inet_pton when it builds its policy.
bool is_cidr_text(std::string_view cidr) {
  return !cidr.empty() && cidr.size() <= 64 && std::ranges::all_of(cidr, [](char c) { return is_alphanumeric(c) || c == '.' || c == ':' || c == '/'; });
}

Result<void> check_network(const Network& network) {
  if (network.mode == NetworkMode::kNone && (!network.services.empty() || !network.rules.empty()))
    return invalid_argument("network.mode: none takes no services and no rules");
  if (network.services.size() > kMaxRules) return invalid_argument("network.services: more than 256");
  for (const std::string& service : network.services)
    if (!is_name(service)) return invalid_argument("network.services: \"" + service.substr(0, 64) + "\" is not a name");
  if (network.rules.size() > kMaxRules) return invalid_argument("network.rules: more than 256");
  for (std::size_t i = 0; i < network.rules.size(); ++i) {
    const NetworkRule& rule = network.rules[i];
    const std::string field = "network.rules[" + std::to_string(i) + "]";
    if (rule.domain.empty() == rule.cidr.empty()) return invalid_argument(field + ": needs exactly one of domain and cidr");
    if (!rule.domain.empty() && !is_domain(rule.domain)) return invalid_argument(field + ".domain: not a domain name");
    if (!rule.cidr.empty() && !is_cidr_text(rule.cidr)) return invalid_argument(field + ".cidr: not an address range");
  }
  return {};
}

Result<void> check_start(const StartCommand& start) {
  if (start.argv.empty() || start.argv.front().empty()) return invalid_argument("start.argv: is required");
  if (start.argv.size() > kMaxArguments) return invalid_argument("start.argv: more than 1024 arguments");
  for (const std::string& argument : start.argv)
    if (argument.find('\0') != std::string::npos) return invalid_argument("start.argv: holds a NUL byte");
  if (start.ready_port != 0 && !start.ready_command.empty()) return invalid_argument("start.ready: a port or a command, not both");
  return check_env(start.env, "start.env");
}
}  // namespace

Result<void> validate(const SandboxSpec& spec) {
  if (!spec.name.empty() && (!is_name(spec.name) || looks_like_id(spec.name)))
    return invalid_argument("name: at most 63 of A-Z a-z 0-9 . _ -, starting with a letter or digit, and not the shape of an id");
  constexpr std::array<std::string_view, 4> kBackends = {"container", "microvm", "fullvm", "fake"};
  if (std::ranges::find(kBackends, spec.backend) == kBackends.end())
    return invalid_argument("backend: must be container, microvm or fullvm");
  const Environment& environment = spec.environment;
  if (!spec.image.empty() && !environment.base.empty()) return invalid_argument("image: excludes environment.base");
  const bool composed = !environment.base.empty() || !environment.workspace.empty() || !environment.toolkits.empty() || !environment.diffs.empty();
  if (!spec.snapshot.empty() && (!spec.image.empty() || composed)) return invalid_argument("snapshot: excludes image and environment");
  if (spec.snapshot.empty() && spec.image.empty() && environment.base.empty()) return invalid_argument("image: is required (or environment.base)");
  if (!spec.snapshot.empty() && !is_name(spec.snapshot)) return invalid_argument("snapshot: letters, digits, \".\", \"_\" and \"-\", at most 63");
  DSEC_TRY(check_layer_name("image", spec.image));
  DSEC_TRY(check_layer_name("environment.base", environment.base));
  DSEC_TRY(check_layer_name("environment.workspace", environment.workspace));
  DSEC_TRY(check_layer_names("environment.toolkits", environment.toolkits));
  DSEC_TRY(check_layer_names("environment.diffs", environment.diffs));

  const Resources& resources = spec.resources;
  if (!std::isfinite(resources.cpu_cores) || resources.cpu_cores < 0.01 || resources.cpu_cores > 1024)
    return invalid_argument("resources.cpu_cores: must be between 0.01 and 1024");
  DSEC_TRY(check_range("resources.memory_mb", resources.memory_mb, 8, std::int64_t{1} << 24));
  DSEC_TRY(check_range("resources.disk_mb", resources.disk_mb, 1, std::int64_t{1} << 28));
  DSEC_TRY(check_range("resources.max_processes", resources.max_processes, 4, std::int64_t{1} << 22));
  DSEC_TRY(check_range("lifetime.idle_seconds", spec.lifetime.idle_seconds, 0, kMaxSeconds));
  DSEC_TRY(check_range("lifetime.max_seconds", spec.lifetime.max_seconds, 0, kMaxSeconds));
  DSEC_TRY(check_network(spec.network));
  if (spec.start) DSEC_TRY(check_start(*spec.start));
  DSEC_TRY(check_env(spec.env, "env"));
  if (spec.labels.size() > kMaxLabels) return invalid_argument("labels: more than 64");
  for (const auto& [key, value] : spec.labels) {
    if (!is_label_key(key)) return invalid_argument("labels: \"" + key.substr(0, 128) + "\" is not a key: at most 128 of A-Z a-z 0-9 . _ / -");
    if (!is_plain_text(value, 256)) return invalid_argument("labels." + key + ": at most 256 bytes of printable text");
  }
  if (!is_plain_text(spec.user, 128) || spec.user.find(' ') != std::string::npos) return invalid_argument("user: not a user name");
  if (!spec.hostname.empty() && !is_hostname(spec.hostname)) return invalid_argument("hostname: not a host name");
  return {};
}

}  // namespace dsec::model
