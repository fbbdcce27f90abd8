#include "model/service.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace dsec::model {
namespace {

TEST(HostNameTest, IsLowerCaseWithoutTheFinalDot) {
  EXPECT_EQ(normal_host_name("Files.Example.ORG.").value(), "files.example.org");
}

TEST(HostNameTest, RefusesWhatAResolverCouldReadAsAnAddress) {
  for (const char* text : {"127.0.0.1", "127.1", "2130706433", "0x7f.0x1", "1.2.3.0x4", "::1", "[::1]", "a.b.1"})
    EXPECT_FALSE(normal_host_name(text).ok()) << text;
}

TEST(HostNameTest, RefusesBytesThatDoNotBelongInAName) {
  for (const char* text : {"", ".", "a..b", "-a.b", "a-.b", "a b", "a/b", "a@b", "a\r\nb", "*.a", "a.*.b", "\xc3\xa9.fr"})
    EXPECT_FALSE(normal_host_name(text).ok()) << text;
}

TEST(HostNameTest, TakesOneLeadingWildcardWhereItIsAllowed) {
  EXPECT_EQ(normal_host_name("*.Example.org", Wildcard::kAllowed).value(), "*.example.org");
  EXPECT_FALSE(normal_host_name("*", Wildcard::kAllowed).ok());
}

TEST(ServiceTest, KeepsEveryFieldThroughJson) {
  ServiceDefinition service;
  service.name = "mirror";
  service.hosts = {{.host = "mirror.example", .port = 443, .addresses = {"10.1.0.0/16"}}, {.host = "10.0.0.7", .port = 80}};
  service.via = "parent.example:3128";
  service.env = {{"PIP_INDEX_URL", "https://mirror.example/simple"}};
  service.ca_certificates = "-----BEGIN CERTIFICATE-----\n";
  service.source = "operator";

  EXPECT_EQ(service_from_json(to_json(service)).value(), service);
}

TEST(ServiceTest, NamesTheFieldThatItDoesNotKnow) {
  const auto result = service_from_json(boost::json::parse(R"({"name":"a","hosts":["a.example"],"port":1})"));

  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message(), "unknown field port");
}

}  // namespace
}  // namespace dsec::model
