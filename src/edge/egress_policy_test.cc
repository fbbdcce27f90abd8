#include "edge/egress_policy.h"

#include <gtest/gtest.h>

namespace dsec::edge {
namespace {

using model::Network;
using model::NetworkRule;
using model::ServiceDefinition;

EgressPolicy policy_of(std::vector<NetworkRule> rules, std::vector<ServiceDefinition> services = {}) {
  Network network{.mode = model::NetworkMode::kProxy, .rules = std::move(rules)};
  for (const ServiceDefinition& service : services) network.services.push_back(service.name);
  return EgressPolicy::create(network, services).value();
}

bool address_refused(const EgressPolicy& policy, const std::string& host, std::uint16_t port, const char* address,
                     const NodeAddresses& node = {}) {
  return policy.refuse_address(host, port, parse_address(address).value(), node).has_value();
}

TEST(CidrTest, TakesAMappedAddressForTheAddressThatItMaps) {
  const Cidr cidr = Cidr::parse("10.0.0.0/8").value();

  EXPECT_TRUE(cidr.contains(*parse_address("::ffff:10.1.2.3")));
  EXPECT_FALSE(cidr.contains(*parse_address("11.0.0.1")));
}

TEST(CidrTest, KeepsTheWholeOfIpv6ApartFromIpv4) {
  EXPECT_FALSE(Cidr::parse("::/0").value().contains(*parse_address("10.0.0.1")));
  EXPECT_TRUE(Cidr::parse("0.0.0.0/0").value().contains(*parse_address("10.0.0.1")));
  EXPECT_FALSE(Cidr::parse("0.0.0.0/0").value().contains(*parse_address("2001:db8::1")));
}

TEST(CidrTest, RefusesWhatIsNotOne) {
  for (const char* text : {"", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/", "10.0.0/8", "fe80::1%lo", "::/129", "a/8", "10.0.0.0/-1", "010.0.0.0/8"})
    EXPECT_FALSE(Cidr::parse(text).ok()) << text;
}

TEST(EgressPolicyTest, DeniesEverythingWithoutRules) {
  EXPECT_FALSE(EgressPolicy().decide({.host = "example.org", .port = 443}).allowed);
  EXPECT_FALSE(EgressPolicy().decide({.host = "192.0.2.1", .port = 443}).allowed);
}

TEST(EgressPolicyTest, MatchesNamesByWholeLabels) {
  const EgressPolicy policy = policy_of({{.domain = "*.example.org"}, {.domain = "example.net", .port = 443}});

  EXPECT_TRUE(policy.decide({.host = "A.Example.ORG.", .port = 80}).allowed);
  EXPECT_TRUE(policy.decide({.host = "b.a.example.org", .port = 80}).allowed);
  EXPECT_FALSE(policy.decide({.host = "example.org", .port = 80}).allowed);
  EXPECT_FALSE(policy.decide({.host = "evilexample.org", .port = 80}).allowed);
  EXPECT_FALSE(policy.decide({.host = "example.org.evil.test", .port = 80}).allowed);
  EXPECT_TRUE(policy.decide({.host = "example.net", .port = 443}).allowed);
  EXPECT_FALSE(policy.decide({.host = "example.net", .port = 80}).allowed);
}

TEST(EgressPolicyTest, AllowsAnAddressOnlyByCidr) {
  const EgressPolicy policy = policy_of({{.domain = "example.org"}, {.cidr = "192.0.2.0/24", .port = 80}});

  EXPECT_TRUE(policy.decide({.host = "192.0.2.9", .port = 80}).allowed);
  EXPECT_TRUE(policy.decide({.host = "[::ffff:192.0.2.9]", .port = 80}).allowed);
  EXPECT_FALSE(policy.decide({.host = "192.0.2.9", .port = 81}).allowed);
  EXPECT_FALSE(policy.decide({.host = "198.51.100.1", .port = 80}).allowed);
}

TEST(EgressPolicyTest, RefusesSpellingsThatAResolverWouldTakeForAnAddress) {
  const EgressPolicy policy = policy_of({{.cidr = "127.0.0.0/8"}, {.cidr = "0.0.0.0/0"}});

  for (const char* host : {"127.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.0.0.1%0", "[127.0.0.1]"})
    EXPECT_FALSE(policy.decide({.host = host, .port = 80}).allowed) << host;
}

TEST(EgressPolicyTest, RefusesEverySpecialAddressThatNoRuleNames) {
  const EgressPolicy policy = policy_of({{.domain = "example.org"}, {.cidr = "0.0.0.0/0"}, {.cidr = "::/0"}});

  for (const char* address :
       {"127.0.0.1", "127.255.0.1", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.127.255.255",
        "0.0.0.0", "0.1.2.3", "224.0.0.1", "255.255.255.255", "240.0.0.1", "::", "::1", "fe80::1", "fc00::1", "fd12::1", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::1", "2001::1", "::7f00:1", "::ffff:0:7f00:1"})
    EXPECT_TRUE(address_refused(policy, "example.org", 80, address)) << address;
  for (const char* address : {"192.0.2.1", "1.1.1.1", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "2001:db8::1"})
    EXPECT_FALSE(address_refused(policy, "example.org", 80, address)) << address;
}

TEST(EgressPolicyTest, LetsARuleNameASpecialBlockButNotTheUnspecifiedAddress) {
  const EgressPolicy policy = policy_of({{.domain = "db.example"}, {.cidr = "10.0.0.0/8", .port = 5432}});

  EXPECT_FALSE(address_refused(policy, "db.example", 5432, "10.1.2.3"));
  EXPECT_TRUE(address_refused(policy, "db.example", 80, "10.1.2.3"));
  EXPECT_TRUE(address_refused(policy, "0.0.0.0", 5432, "0.0.0.0"));
  EXPECT_TRUE(address_refused(policy, "db.example", 5432, "64:ff9b::a00:1"));
}

TEST(EgressPolicyTest, RefusesARuleForWhatNoRuleCanOpen) {
  for (const char* cidr : {"0.0.0.0/8", "64:ff9b::/96", "224.0.0.1", "169.254.169.254/32", "169.254.0.0/16", "fe80::/10", "100.100.100.200",
                           "192.0.0.192/32", "168.63.129.16", "fd00:ec2::254", "fd20:ce::254/128"})
    EXPECT_FALSE(EgressPolicy::create({.rules = {{.cidr = cidr}}}, {}).ok()) << cidr;
  for (const char* cidr : {"127.0.0.1", "10.0.0.0/8", "0.0.0.0/0", "::/0", "100.64.0.0/10", "fc00::/7", "168.63.0.0/16"})
    EXPECT_TRUE(EgressPolicy::create({.rules = {{.cidr = cidr}}}, {}).ok()) << cidr;
}

TEST(EgressPolicyTest, LeavesMetadataToTheOperatorThoughARuleCoversIt) {
  const ServiceDefinition metadata{.name = "metadata", .hosts = {{.host = "169.254.169.254", .port = 80}, {.host = "meta.example", .addresses = {"fd00:ec2::254"}}}};
  const EgressPolicy rules = policy_of({{.domain = "meta.example"}, {.cidr = "0.0.0.0/0"}, {.cidr = "100.64.0.0/10"}, {.cidr = "fc00::/7"}, {.cidr = "168.63.0.0/16"}});
  const EgressPolicy service = policy_of({}, {metadata});

  for (const char* address : {"169.254.169.254", "100.100.100.200", "fd00:ec2::254", "168.63.129.16", "fe80::1"})
    EXPECT_TRUE(address_refused(rules, "meta.example", 80, address)) << address;
  EXPECT_FALSE(address_refused(rules, "meta.example", 80, "100.100.100.201"));
  EXPECT_FALSE(address_refused(service, "169.254.169.254", 80, "169.254.169.254"));
  EXPECT_FALSE(address_refused(service, "meta.example", 80, "fd00:ec2::254"));
}

TEST(EgressPolicyTest, LeavesThePlatformsOwnPortToTheOperator) {
  const NodeAddresses node{.addresses = {*parse_address("127.0.0.1"), *parse_address("192.168.1.5")}, .platform_ports = {7780}};
  const ServiceDefinition api{.name = "api", .hosts = {{.host = "127.0.0.1", .port = 7780}}};
  const EgressPolicy rules = policy_of({{.domain = "any.example"}, {.cidr = "127.0.0.0/8"}, {.cidr = "192.168.1.5"}, {.cidr = "192.168.1.6"}, {.cidr = "::1"}});

  for (const char* address : {"127.0.0.1", "127.9.9.9", "::1", "192.168.1.5", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(address_refused(rules, address, 7780, address, node)) << address;
    EXPECT_TRUE(address_refused(rules, "any.example", 7780, address, node)) << address;
    EXPECT_FALSE(address_refused(rules, address, 7781, address, node)) << address;
  }
  EXPECT_FALSE(address_refused(rules, "192.168.1.6", 7780, "192.168.1.6", node)) << "another machine's";
  EXPECT_FALSE(address_refused(policy_of({}, {api}), "127.0.0.1", 7780, "127.0.0.1", node));
}

TEST(EgressPolicyTest, ProtectsTheNodesOwnAddressesFromBroadRules) {
  const NodeAddresses own{.addresses = {*parse_address("192.168.1.5"), *parse_address("203.0.113.7")}, .platform_ports = {}};
  const EgressPolicy broad = policy_of({{.domain = "example.org"}, {.cidr = "192.168.0.0/16"}, {.cidr = "0.0.0.0/0"}});
  const EgressPolicy exact = policy_of({{.cidr = "192.168.1.5"}, {.cidr = "203.0.113.7/32"}});

  EXPECT_TRUE(address_refused(broad, "192.168.1.5", 80, "192.168.1.5", own));
  EXPECT_TRUE(address_refused(broad, "example.org", 80, "203.0.113.7", own));
  EXPECT_FALSE(address_refused(broad, "192.168.1.6", 80, "192.168.1.6", own));
  EXPECT_FALSE(address_refused(exact, "192.168.1.5", 80, "192.168.1.5", own));
  EXPECT_FALSE(address_refused(exact, "203.0.113.7", 80, "203.0.113.7", own));
}

TEST(EgressPolicyTest, LetsAServiceHostHaveThePrivateAddressThatTheOperatorNamed) {
  const ServiceDefinition mirror{.name = "mirror", .hosts = {{.host = "mirror.example", .port = 443, .addresses = {"10.9.0.0/16"}}, {.host = "10.8.0.1", .port = 80}}};
  const EgressPolicy policy = policy_of({{.domain = "other.example"}}, {mirror});

  EXPECT_FALSE(address_refused(policy, "mirror.example", 443, "10.9.1.1"));
  EXPECT_TRUE(address_refused(policy, "mirror.example", 443, "10.7.1.1"));
  EXPECT_TRUE(address_refused(policy, "other.example", 443, "10.9.1.1"));
  EXPECT_TRUE(policy.decide({.host = "10.8.0.1", .port = 80}).allowed);
  EXPECT_FALSE(address_refused(policy, "10.8.0.1", 80, "10.8.0.1"));
}

TEST(EgressPolicyTest, NamesTheServiceThatIsNotDefined) {
  const auto result = EgressPolicy::create({.services = {"pypi"}}, {});

  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message().find("pypi"), std::string::npos);
}

TEST(EgressPolicyTest, ExpectsTlsUnlessAnotherPortIsNamed) {
  const EgressPolicy policy = policy_of({{.domain = "a.example"}, {.domain = "b.example", .port = 22}, {.domain = "c.example", .port = 443}});

  EXPECT_FALSE(policy.decide({.host = "a.example", .port = 22}).plain_allowed);
  EXPECT_TRUE(policy.decide({.host = "b.example", .port = 22}).plain_allowed);
  EXPECT_FALSE(policy.decide({.host = "c.example", .port = 443}).plain_allowed);
}

TEST(EgressEnvironmentTest, AddsWhatTheServicesSetAndTheirCertificatesOnce) {
  const ServiceDefinition one{.name = "one", .hosts = {{.host = "a.example"}}, .env = {{"PIP_INDEX_URL", "https://a.example/"}}, .ca_certificates = "PEM\n"};
  ServiceDefinition two = one;
  two.name = "two";
  two.env = {};
  const EgressPolicy policy = policy_of({}, {one, two});

  EXPECT_EQ(egress_environment(policy).at("PIP_INDEX_URL"), "https://a.example/");
  EXPECT_EQ(egress_environment(policy).at("https_proxy"), "http://127.0.0.1:3128");
  EXPECT_EQ(egress_files(policy), (std::map<std::string, std::string>{{model::kServiceCaPath, "PEM\n"}}));
}

}  // namespace
}  // namespace dsec::edge
