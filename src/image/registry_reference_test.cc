#include "image/registry_reference.h"

#include <gtest/gtest.h>

namespace dsec::image {
namespace {

const std::string kDigest = "sha256:" + std::string(64, 'a');

TEST(RegistryReferenceTest, ReadsWhatPeopleWrite) {
  const auto text = [](std::string_view reference) { return parse_registry_reference(reference).value().text(); };

  EXPECT_EQ(text("Registry.Example/a/b:v1"), "registry.example/a/b:v1");
  EXPECT_EQ(text("127.0.0.1:5000/x:1"), "127.0.0.1:5000/x:1");
  EXPECT_EQ(text("localhost/x"), "localhost/x:latest");
  EXPECT_EQ(text("registry.example/x@" + kDigest), "registry.example/x@" + kDigest);
  EXPECT_EQ(text("registry.example/x:1@" + kDigest), "registry.example/x@" + kDigest);
}

TEST(RegistryReferenceTest, RefusesWhatIsNoReference) {
  for (const std::string wrong : {"", "/", "debian", "debian:12", "team/app", "a//b", "A/B", "a b", "registry.example/", "x@sha256:12", "x:", "x:a b", "--option", "registry.example:0/x", "registry.example:99999/x",
                                  "registry.example/../x", "-x.example/y", "x\n", "registry.example/x?y", "user@host/x"}) {
    const auto parsed = parse_registry_reference(wrong);
    EXPECT_FALSE(parsed.ok()) << wrong << " -> " << (parsed.ok() ? parsed->text() : "");
  }
}

TEST(RegistryReferenceTest, AllowsWhatTheOperatorNamedAndNothingElse) {
  std::vector<AllowedRegistry> allowed;
  for (const char* entry : {"other.example", "registry.example:5000", "http://127.0.0.1:5001"}) allowed.push_back(parse_allowed_registry(entry).value());
  const auto code = [&](std::string_view reference) {
    const auto found = find_allowed(allowed, parse_registry_reference(reference).value());
    return found.ok() ? std::string(found->plain_http ? "http" : "https") : std::string(traits(found.error().code()).name);
  };

  EXPECT_EQ(code("other.example/x"), "https");
  EXPECT_EQ(code("registry.example:5000/x"), "https");
  EXPECT_EQ(code("127.0.0.1:5001/x"), "http");
  for (const char* other : {"registry.example/x", "registry.example:5001/x", "127.0.0.1:5000/x", "localhost:5001/x", "sub.registry.example:5000/x", "third.example/x/y"}) EXPECT_EQ(code(other), "permission_denied") << other;
}

TEST(RegistryReferenceTest, RefusesWhatIsNoHost) {
  EXPECT_EQ(parse_allowed_registry("http://r.example")->port, 80);
  EXPECT_FALSE(parse_allowed_registry("r.example/path").ok());
  EXPECT_FALSE(parse_allowed_registry("r.example:port").ok());
  EXPECT_FALSE(parse_allowed_registry("").ok());
}

}  // namespace
}  // namespace dsec::image
