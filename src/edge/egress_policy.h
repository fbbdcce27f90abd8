// What one sandbox may reach: a pure decision, in two steps.
//
// By name first: a destination is allowed when a service or a rule matches its
// host and port; an address as destination needs a CIDR rule or a service that
// names it. By address then: what the name resolved to is checked, every
// address on its own. Special addresses (loopback, private, shared, the node's
// own, …) are refused unless a rule names them, and the rule names them only
// when its CIDR lies inside the special block: 0.0.0.0/0 means the public
// internet, 10.0.0.0/8 means that private network. Rules are the project's;
// link-local addresses, those where clouds hand out a node's credentials, and
// the platform's own ports on the node need the operator: a service that names
// them. Unspecified, multicast, broadcast and reserved addresses, and IPv6 forms
// that carry an IPv4 address through a translator, are never dialled.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/sandbox.h"
#include "model/service.h"

namespace dsec::edge {

// An IPv4 or IPv6 address as 16 bytes; IPv4 in its mapped form, so that
// ::ffff:127.0.0.1 and 127.0.0.1 are the same value.
struct IpAddress {
  std::array<unsigned char, 16> bytes{};
  bool is_v4() const;
  std::string text() const;
  bool operator==(const IpAddress&) const = default;
  auto operator<=>(const IpAddress&) const = default;
};
// "192.0.2.1" in exactly that form (no octal, no short form), or an IPv6
// address, in brackets or not, without a zone.
std::optional<IpAddress> parse_address(std::string_view text);

// "loopback", "private", …: what a rule must name before it is dialled; nothing for
// a public address.
std::optional<std::string> special_kind(const IpAddress& address);

class Cidr {
 public:
  // "10.0.0.0/8", "fd00::/8", or one address. Bits behind the prefix must be 0.
  static Result<Cidr> parse(std::string_view text);
  static Cidr single(const IpAddress& address);
  bool contains(const IpAddress& address) const;
  bool contains(const Cidr& other) const;
  std::string text() const;

 private:
  IpAddress network_;
  int bits_ = 0;  // of 128
};

// What leads back to the node, however it is spelled.
struct NodeAddresses {
  std::vector<IpAddress> addresses;           // of its interfaces, and others that are it
  std::vector<std::uint16_t> platform_ports;  // where the platform itself listens on them
};

struct Destination {
  std::string host;  // as it stands in the request: a name or an address
  std::uint16_t port = 0;
};

struct EgressDecision {
  bool allowed = false;
  std::string reason;   // "service pypi", "rule *.example.org:443", "no rule names example.net:443"
  std::string host;     // normal form: lower case, no final dot, no brackets
  std::optional<IpAddress> literal;  // when the host is an address: nothing is to be resolved
  std::string via;      // parent proxy; then the proxy resolves and dials
  bool plain_allowed = false;        // a tunnel may carry something other than TLS
};

class EgressPolicy {
 public:
  // Nothing is allowed.
  EgressPolicy() = default;
  // `services`: the definitions of the services that `network` names. A service
  // that has no definition is an error that names it; so is a rule for addresses
  // that no rule can open.
  static Result<EgressPolicy> create(const model::Network& network, const std::vector<model::ServiceDefinition>& services);

  EgressDecision decide(const Destination& destination) const;
  // Whether the name may be asked for, on whatever port.
  EgressDecision decide_name(std::string_view host) const;
  // The reason of a refusal, or nothing. `host` is the normal form of an allowed
  // destination.
  std::optional<std::string> refuse_address(const std::string& host, std::uint16_t port, const IpAddress& address,
                                            const NodeAddresses& node) const;

  const std::vector<model::ServiceDefinition>& services() const { return services_; }

 private:
  struct Target {
    std::string reason;
    std::string host;            // "" = by CIDR alone
    bool wildcard = false;       // host is what follows "*."
    std::optional<Cidr> cidr;    // of a CIDR rule or an address as service host
    std::uint16_t port = 0;
    std::vector<Cidr> addresses;  // special ones that the service names
    std::string via;
    bool operator_named = false;
  };
  // Of the address that was resolved, whoever opened it: a rule or a service.
  bool opened(const std::string& host, std::uint16_t port, const IpAddress& address, bool by_service, const Cidr& block) const;
  const Target* match(const std::string& host, const std::optional<IpAddress>& literal, std::optional<std::uint16_t> port) const;

  std::vector<model::ServiceDefinition> services_;
  std::vector<Target> targets_;
};

// The environment of every process in a sandbox of mode `proxy`: the proxy's
// address, then what the services add. What the sandbox's spec sets goes over it.
std::map<std::string, std::string> egress_environment(const EgressPolicy& policy);
// Files to write inside before the first process starts (path -> bytes): the
// services' certificates. Empty for most.
std::map<std::string, std::string> egress_files(const EgressPolicy& policy);

}  // namespace dsec::edge
