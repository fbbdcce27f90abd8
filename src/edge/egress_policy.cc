#include "edge/egress_policy.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

namespace dsec::edge {
namespace {

constexpr std::array<unsigned char, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// Blocks that lead to the node, to its network, or nowhere. Text, parsed once:
// the table should read as the registries print it.
enum class Opener {
  kNobody,
  kOperator,  // a service
  kRule,      // a service or a rule
};
struct SpecialBlock {
  const char* cidr;
  const char* name;
  Opener opener;
};
constexpr SpecialBlock kSpecialBlocks[] = {
    {"0.0.0.0/8", "unspecified", Opener::kNobody},
    {"10.0.0.0/8", "private", Opener::kRule},
    {"100.64.0.0/10", "shared", Opener::kRule},
    {"100.100.100.200/32", "node metadata", Opener::kOperator},
    {"127.0.0.0/8", "loopback", Opener::kRule},
    {"168.63.129.16/32", "node metadata", Opener::kOperator},
    {"169.254.0.0/16", "link-local", Opener::kOperator},
    {"172.16.0.0/12", "private", Opener::kRule},
    {"192.0.0.0/24", "protocol", Opener::kOperator},
    {"192.88.99.0/24", "6to4 relay", Opener::kNobody},
    {"192.168.0.0/16", "private", Opener::kRule},
    {"198.18.0.0/15", "benchmarking", Opener::kRule},
    {"224.0.0.0/4", "multicast", Opener::kNobody},
    {"240.0.0.0/4", "reserved", Opener::kNobody},
    {"::/128", "unspecified", Opener::kNobody},
    {"::1/128", "loopback", Opener::kRule},
    {"::/96", "IPv4-compatible", Opener::kNobody},
    {"::ffff:0:0:0/96", "IPv4-translated", Opener::kNobody},
    {"64:ff9b::/96", "IPv4-translating", Opener::kNobody},
    {"64:ff9b:1::/48", "IPv4-translating", Opener::kNobody},
    {"100::/64", "discard", Opener::kNobody},
    {"2001::/32", "Teredo", Opener::kNobody},
    {"2002::/16", "6to4", Opener::kNobody},
    {"fc00::/7", "private", Opener::kRule},
    {"fd00:ec2::/64", "node metadata", Opener::kOperator},
    {"fd20:ce::254/128", "node metadata", Opener::kOperator},
    {"fe80::/10", "link-local", Opener::kOperator},
    {"fec0::/10", "site-local", Opener::kRule},
    {"ff00::/8", "multicast", Opener::kNobody},
};

struct ParsedBlock {
  Cidr cidr;
  const char* name;
  Opener opener;
};

const std::vector<ParsedBlock>& special_blocks() {
  static const std::vector<ParsedBlock> blocks = [] {
    std::vector<ParsedBlock> out;
    for (const SpecialBlock& block : kSpecialBlocks)
      out.push_back({Cidr::parse(block.cidr).value(), block.name, block.opener});
    return out;
  }();
  return blocks;
}

// ::1 stands in ::/96 too: the narrowest block decides.
const ParsedBlock* special_block(const IpAddress& address) {
  const ParsedBlock* found = nullptr;
  for (const ParsedBlock& block : special_blocks())
    if (block.cidr.contains(address) && (found == nullptr || found->cidr.contains(block.cidr))) found = &block;
  return found;
}

// The narrowest block that holds all of `cidr`.
const ParsedBlock* block_around(const Cidr& cidr) {
  const ParsedBlock* found = nullptr;
  for (const ParsedBlock& block : special_blocks())
    if (block.cidr.contains(cidr) && (found == nullptr || found->cidr.contains(block.cidr))) found = &block;
  return found;
}

std::string with_port(const std::string& host, std::uint16_t port) {
  return port == 0 ? host : host + ":" + std::to_string(port);
}

bool below(const std::string& name, const std::string& suffix) {
  return name.size() > suffix.size() + 1 && name.ends_with(suffix) && name[name.size() - suffix.size() - 1] == '.';
}

std::string names_of(const std::vector<model::ServiceDefinition>& services) {
  std::string out;
  for (const model::ServiceDefinition& service : services) out += (out.empty() ? "" : ", ") + service.name;
  return out.empty() ? "none" : out;
}

}  // namespace

bool IpAddress::is_v4() const { return std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), bytes.begin()); }

std::string IpAddress::text() const {
  char out[INET6_ADDRSTRLEN] = {};
  if (is_v4())
    inet_ntop(AF_INET, bytes.data() + 12, out, sizeof out);
  else
    inet_ntop(AF_INET6, bytes.data(), out, sizeof out);
  return out;
}

std::optional<IpAddress> parse_address(std::string_view text) {
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') {
    text = text.substr(1, text.size() - 2);
    if (text.find(':') == std::string_view::npos) return std::nullopt;
  }
  if (text.empty() || text.size() >= INET6_ADDRSTRLEN) return std::nullopt;
  const std::string zero_ended(text);
  IpAddress out;
  if (inet_pton(AF_INET, zero_ended.c_str(), out.bytes.data() + 12) == 1) {  // strict: four decimal parts
    std::copy(kMappedPrefix.begin(), kMappedPrefix.end(), out.bytes.begin());
    return out;
  }
  if (inet_pton(AF_INET6, zero_ended.c_str(), out.bytes.data()) == 1) return out;
  return std::nullopt;
}

std::optional<std::string> special_kind(const IpAddress& address) {
  const ParsedBlock* block = special_block(address);
  if (block == nullptr) return std::nullopt;
  return block->name;
}

Result<Cidr> Cidr::parse(std::string_view text) {
  const Error refused = invalid_argument("not an address or CIDR: '" + std::string(text.substr(0, 64)) + "'");
  const std::size_t slash = text.find('/');
  const std::optional<IpAddress> network = parse_address(text.substr(0, slash));
  if (!network) return refused;
  Cidr out;
  out.network_ = *network;
  // An IPv4-mapped network written in IPv6 form counts its bits from the top.
  const bool v4_form = text.find(':') == std::string_view::npos;
  const int width = v4_form ? 32 : 128;
  int bits = width;
  if (slash != std::string_view::npos) {
    const std::string_view digits = text.substr(slash + 1);
    if (digits.empty() || digits.size() > 3 || !std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; })) return refused;
    bits = std::stoi(std::string(digits));
    if (bits > width) return refused;
  }
  out.bits_ = bits + (128 - width);
  for (int bit = out.bits_; bit < 128; ++bit)
    if ((out.network_.bytes[static_cast<std::size_t>(bit / 8)] >> (7 - bit % 8)) & 1)
      return invalid_argument("CIDR '" + std::string(text) + "' has bits set behind its prefix");
  return out;
}

Cidr Cidr::single(const IpAddress& address) {
  Cidr out;
  out.network_ = address;
  out.bits_ = 128;
  return out;
}

bool Cidr::contains(const IpAddress& address) const {
  // ::/0 is the IPv6 internet; IPv4 has its own form here.
  if (bits_ < 96 && address.is_v4()) return false;
  const auto whole = static_cast<std::size_t>(bits_ / 8);
  if (!std::equal(network_.bytes.begin(), network_.bytes.begin() + static_cast<std::ptrdiff_t>(whole), address.bytes.begin())) return false;
  if (bits_ % 8 == 0) return true;
  const int shift = 8 - bits_ % 8;
  return network_.bytes[whole] >> shift == address.bytes[whole] >> shift;
}

bool Cidr::contains(const Cidr& other) const { return bits_ <= other.bits_ && contains(other.network_); }

std::string Cidr::text() const {
  return network_.text() + "/" + std::to_string(bits_ >= 96 && network_.is_v4() ? bits_ - 96 : bits_);
}

Result<EgressPolicy> EgressPolicy::create(const model::Network& network, const std::vector<model::ServiceDefinition>& services) {
  EgressPolicy policy;
  for (const std::string& name : network.services) {
    const auto service = std::ranges::find(services, name, &model::ServiceDefinition::name);
    if (service == services.end())
      return invalid_argument("network.services: no service '" + name + "' is defined on this node (defined: " + names_of(services) + ")");
    policy.services_.push_back(*service);
    for (const model::ServiceHost& host : service->hosts) {
      Target target;
      target.reason = "service " + name;
      target.port = host.port;
      target.via = service->via;
      target.operator_named = true;
      for (const std::string& text : host.addresses) {
        DSEC_ASSIGN(Cidr cidr, Cidr::parse(text).within("service " + name));
        target.addresses.push_back(cidr);
      }
      if (Result<Cidr> cidr = Cidr::parse(host.host); cidr.ok()) {
        target.cidr = *cidr;
        target.addresses.push_back(*cidr);
      } else {
        DSEC_ASSIGN(target.host, model::normal_host_name(host.host, model::Wildcard::kAllowed).within("service " + name));
      }
      policy.targets_.push_back(std::move(target));
    }
  }
  for (const model::NetworkRule& rule : network.rules) {
    Target target;
    target.port = rule.port;
    if (rule.domain.empty() == rule.cidr.empty()) return invalid_argument("network.rules: exactly one of domain and cidr");
    if (!rule.cidr.empty()) {
      DSEC_ASSIGN(Cidr cidr, Cidr::parse(rule.cidr).within("network.rules"));
      if (const ParsedBlock* block = block_around(cidr); block != nullptr && block->opener != Opener::kRule)
        return invalid_argument("network.rules: " + rule.cidr + " is " + block->name + ": " +
                                (block->opener == Opener::kOperator ? "only a service of the operator opens it" : "it is never dialled"));
      target.cidr = cidr;
      target.reason = "rule " + with_port(rule.cidr, rule.port);
    } else {
      DSEC_ASSIGN(target.host, model::normal_host_name(rule.domain, model::Wildcard::kAllowed).within("network.rules"));
      target.reason = "rule " + with_port(rule.domain, rule.port);
    }
    policy.targets_.push_back(std::move(target));
  }
  for (Target& target : policy.targets_) {
    if (!target.host.starts_with("*.")) continue;
    target.wildcard = true;
    target.host.erase(0, 2);
  }
  return policy;
}

const EgressPolicy::Target* EgressPolicy::match(const std::string& host, const std::optional<IpAddress>& literal,
                                                std::optional<std::uint16_t> port) const {
  for (const Target& target : targets_) {
    if (port && target.port != 0 && target.port != *port) continue;
    if (literal) {
      if (target.cidr && target.cidr->contains(*literal)) return &target;
    } else if (!target.host.empty() && (target.wildcard ? below(host, target.host) : host == target.host)) {
      return &target;
    }
  }
  return nullptr;
}

EgressDecision EgressPolicy::decide(const Destination& destination) const {
  EgressDecision decision;
  if (destination.port == 0) {
    decision.reason = "no port";
    return decision;
  }
  decision.literal = parse_address(destination.host);
  if (decision.literal) {
    decision.host = decision.literal->text();
  } else {
    Result<std::string> name = model::normal_host_name(destination.host);
    if (!name.ok()) {
      decision.reason = name.error().message();
      return decision;
    }
    decision.host = *name;
  }
  const Target* target = match(decision.host, decision.literal, destination.port);
  if (target == nullptr) {
    decision.reason = "no service and no rule of this sandbox names " + with_port(decision.host, destination.port);
    return decision;
  }
  decision.allowed = true;
  decision.reason = target->reason;
  decision.via = target->via;
  // On the port of HTTPS, and where no port was named, only TLS is expected: its
  // server name is what ties the tunnel to the name that was allowed.
  decision.plain_allowed = decision.literal.has_value() || (target->port != 0 && target->port != 443);
  return decision;
}

EgressDecision EgressPolicy::decide_name(std::string_view host) const {
  EgressDecision decision;
  Result<std::string> name = model::normal_host_name(host);
  if (!name.ok()) {
    decision.reason = name.error().message();
    return decision;
  }
  decision.host = *name;
  const Target* target = match(decision.host, std::nullopt, std::nullopt);
  decision.allowed = target != nullptr;
  decision.reason = target != nullptr ? target->reason : "no service and no rule of this sandbox names " + decision.host;
  if (target != nullptr) decision.via = target->via;
  return decision;
}

bool EgressPolicy::opened(const std::string& host, std::uint16_t port, const IpAddress& address, bool by_service, const Cidr& block) const {
  const std::optional<IpAddress> literal = parse_address(host);
  for (const Target& target : targets_) {
    if (target.operator_named != by_service || (port != 0 && target.port != 0 && target.port != port)) continue;
    if (!by_service) {
      if (target.cidr && target.cidr->contains(address) && block.contains(*target.cidr)) return true;
      continue;
    }
    // The operator lets this host, not every host, have the address.
    const bool this_host = literal ? target.cidr && target.cidr->contains(*literal)
                                   : !target.host.empty() && (target.wildcard ? below(host, target.host) : host == target.host);
    if (this_host && std::ranges::any_of(target.addresses, [&](const Cidr& cidr) { return cidr.contains(address); })) return true;
  }
  return false;
}

std::optional<std::string> EgressPolicy::refuse_address(const std::string& host, std::uint16_t port, const IpAddress& address,
                                                        const NodeAddresses& node) const {
  const bool own = std::ranges::find(node.addresses, address) != node.addresses.end();
  const ParsedBlock* block = special_block(address);
  if (block == nullptr && !own) return std::nullopt;
  if (block != nullptr && block->opener == Opener::kNobody) return address.text() + " is a " + block->name + " address, which is never dialled";

  // An own address outside loopback stands for every service of the node: only a
  // rule for that one address means it.
  const bool loopback = block != nullptr && std::string_view(block->name) == "loopback";
  const Cidr named_inside = own && !loopback ? Cidr::single(address) : block->cidr;
  if (opened(host, port, address, true, named_inside)) return std::nullopt;
  const bool platform = (own || loopback) && std::ranges::find(node.platform_ports, port) != node.platform_ports.end();
  if (platform) return with_port(address.text(), port) + " is the platform's own, which only a service of the operator opens";
  const std::string kind = block != nullptr ? "a " + std::string(block->name) + " address" : "the node's own address";
  if (block != nullptr && block->opener == Opener::kOperator) return address.text() + " is " + kind + ", which only a service of the operator opens";
  if (opened(host, port, address, false, named_inside)) return std::nullopt;
  return address.text() + " is " + kind + " that no rule names";
}

std::map<std::string, std::string> egress_environment(const EgressPolicy& policy) {
  constexpr const char* kProxy = "http://127.0.0.1:3128";
  constexpr const char* kDirect = "localhost,127.0.0.1,::1";
  std::map<std::string, std::string> env = {
      {"HTTP_PROXY", kProxy}, {"http_proxy", kProxy}, {"HTTPS_PROXY", kProxy}, {"https_proxy", kProxy}, {"NO_PROXY", kDirect}, {"no_proxy", kDirect},
  };
  for (const model::ServiceDefinition& service : policy.services()) env.insert(service.env.begin(), service.env.end());
  return env;
}

std::map<std::string, std::string> egress_files(const EgressPolicy& policy) {
  std::string certificates;
  std::vector<std::string_view> seen;
  for (const model::ServiceDefinition& service : policy.services()) {
    if (service.ca_certificates.empty() || std::ranges::find(seen, service.ca_certificates) != seen.end()) continue;
    seen.push_back(service.ca_certificates);
    certificates += service.ca_certificates;
    if (!certificates.ends_with('\n')) certificates += '\n';
  }
  if (certificates.empty()) return {};
  return {{model::kServiceCaPath, std::move(certificates)}};
}

}  // namespace dsec::edge
