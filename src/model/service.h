// Services: the egress targets that an operator has named for the node.
//
// A sandbox in network mode `proxy` reaches the hosts of the services that its
// spec names. Defining one is an act of the operator, so a definition may do
// what a sandbox's own rules may not: name addresses that are private to the
// node's network, and a parent proxy.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace dsec::model {

struct ServiceHost {
  std::string host;  // "example.org", "*.example.org" (every name below it) or an address
  std::uint16_t port = 0;  // 0 = any
  // CIDRs where the name may point although they are loopback, private or the
  // like. An address as `host` allows itself.
  std::vector<std::string> addresses;
  bool operator==(const ServiceHost&) const = default;
};

struct ServiceDefinition {
  std::string name;  // [a-z0-9][a-z0-9_-]{0,62}
  std::vector<ServiceHost> hosts;
  std::string via;  // "host:port" of a parent HTTP proxy that reaches the hosts; "" = directly
  // Set inside every sandbox that may use the service: the package client's own
  // configuration ("PIP_INDEX_URL").
  std::map<std::string, std::string> env;
  // PEM certificates that the node's own client trusts for these hosts; "" =
  // what the image trusts. Written inside at kServiceCaPath.
  std::string ca_certificates;
  std::string source;  // for people: "pip config list"
  bool operator==(const ServiceDefinition&) const = default;
};

// Where the certificates of a sandbox's services stand inside it.
inline constexpr const char* kServiceCaPath = "/run/dsec/egress-ca.pem";

// Host names (LDH labels, at most 253 bytes; one leading "*." where `wildcard`
// allows it) in lower case without a final dot. Refuses all else, addresses too.
enum class Wildcard { kRefused, kAllowed };
Result<std::string> normal_host_name(std::string_view text, Wildcard wildcard = Wildcard::kRefused);

// The error names the field. Hosts come back in their normal form.
Result<ServiceDefinition> validate(ServiceDefinition service);

boost::json::value to_json(const ServiceDefinition& service);
// Unknown fields are refused with their name; the result is validated.
Result<ServiceDefinition> service_from_json(const boost::json::value& value);

}  // namespace dsec::model
