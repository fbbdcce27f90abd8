#include "edge/service_detect.h"

#include <gtest/gtest.h>

#include <map>

namespace dsec::edge {
namespace {

class FakeClients final : public ClientRunner {
 public:
  Result<std::string> run(const std::vector<std::string>& argv) override {
    std::string line;
    for (const std::string& word : argv) line += (line.empty() ? "" : " ") + word;
    for (auto one = outputs.rbegin(); one != outputs.rend(); ++one)  // the longest prefix first
      if (line.starts_with(one->first)) return one->second;
    return Error(ErrorCode::kNotFound, argv[0] + " is not installed");
  }
  std::map<std::string, std::string> outputs;
};

DetectSurroundings surroundings(std::map<std::string, std::string> variables = {}, std::map<std::string, std::string> files = {},
                                std::map<std::string, const char*> addresses = {}) {
  return {
      .variable = [variables](const std::string& name) { return variables.contains(name) ? variables.at(name) : std::string(); },
      .file = [files](const std::string& path) -> Result<std::string> {
        if (!files.contains(path)) return Error(ErrorCode::kNotFound, path);
        return files.at(path);
      },
      .addresses = [addresses](const std::string& host) {
        return addresses.contains(host) ? std::vector<IpAddress>{*parse_address(addresses.at(host))} : std::vector<IpAddress>();
      },
  };
}

TEST(ParseUrlTest, LeavesCredentialsOut) {
  const Url url = parse_url("https://user:secret@Mirror.example:8443/simple/").value();

  EXPECT_EQ(url.host, "mirror.example");
  EXPECT_EQ(url.port, 8443);
  EXPECT_EQ(url.text, "https://Mirror.example:8443/simple/");
  EXPECT_TRUE(url.had_user);
  EXPECT_FALSE(parse_url("file:///opt/x").ok());
}

TEST(ServiceDetectTest, TakesPipsConfiguredMirrorItsFilesAndItsCertificates) {
  FakeClients clients;
  clients.outputs["pip config list"] = "global.index-url='https://u:p@mirror.example/simple'\nglobal.cert='/etc/ca.pem'\n";
  clients.outputs["pip --quiet"] = R"({"install":[{"download_info":{"url":"https://files.example/pip.whl"}}]})";

  const ServiceDetection found = detect_services(clients, surroundings({}, {{"/etc/ca.pem", "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n# own\n-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\nBB\n-----END CERTIFICATE-----\n"}}, {{"files.example", "10.0.0.7"}}));

  ASSERT_EQ(found.services.size(), 1U);
  const model::ServiceDefinition& service = found.services.front();
  EXPECT_EQ(service.name, "pypi");
  EXPECT_EQ(service.hosts, (std::vector<model::ServiceHost>{{.host = "mirror.example", .port = 443},
                                                            {.host = "files.example", .port = 443, .addresses = {"10.0.0.7"}}}));
  EXPECT_EQ(service.env.at("PIP_INDEX_URL"), "https://mirror.example/simple");
  EXPECT_EQ(service.env.at("PIP_CERT"), model::kServiceCaPath);
  EXPECT_EQ(service.ca_certificates, "-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\nBB\n-----END CERTIFICATE-----\n");
}

TEST(ServiceDetectTest, KeepsTheCredentialsOfAChecksumMirrorOnTheNode) {
  FakeClients clients;
  clients.outputs["go env GOPROXY"] = "https://go.example,direct\n";
  clients.outputs["go env GOSUMDB"] = "sum.example+0123 https://u:secret@mirror.example/sum\n";

  const ServiceDetection found = detect_services(clients, surroundings());

  ASSERT_EQ(found.services.size(), 1U);
  EXPECT_EQ(found.services.front().env.at("GOSUMDB"), "sum.example+0123 https://mirror.example/sum");
  EXPECT_EQ(found.services.front().hosts.back().host, "mirror.example");
}

TEST(ServiceDetectTest, OpensNoMetadataAddressOnAServersWord) {
  FakeClients clients;
  clients.outputs["pip config list"] = "global.index-url='https://mirror.example/simple'\n";
  clients.outputs["pip --quiet"] = R"({"install":[{"download_info":{"url":"http://files.example/pip.whl"}}]})";

  const ServiceDetection found = detect_services(clients, surroundings({}, {}, {{"files.example", "169.254.169.254"}, {"mirror.example", "10.0.0.7"}}));

  ASSERT_EQ(found.services.size(), 1U);
  EXPECT_EQ(found.services.front().hosts, (std::vector<model::ServiceHost>{{.host = "mirror.example", .port = 443, .addresses = {"10.0.0.7"}},
                                                                           {.host = "files.example", .port = 80}}));
}

TEST(ServiceDetectTest, ReadsPipsDefaultFromItsHelp) {
  FakeClients clients;
  clients.outputs["pip config list"] = "";
  clients.outputs["pip download --help"] = "  -i, --index-url <url>       Base URL of the Python Package Index (default\n            https://index.example/simple). This should\n";

  const ServiceDetection found = detect_services(clients, surroundings());

  ASSERT_EQ(found.services.size(), 1U);
  EXPECT_EQ(found.services.front().hosts.front().host, "index.example");
}

TEST(ServiceDetectTest, TakesNpmGoAndTheNodesOwnRelease) {
  FakeClients clients;
  clients.outputs["npm config get registry"] = "https://npm.example/\n";
  clients.outputs["npm config get"] = "null\n";
  clients.outputs["npm view"] = "https://tar.example/npm.tgz\n";
  clients.outputs["go env GOPROXY"] = "https://go.example,direct\n";
  clients.outputs["go env GOSUMDB"] = "sum.example+0123\n";
  clients.outputs["apt-get indextargets"] = "bookworm http://deb.example/debian\nbookworm-security http://sec.example/debian\nnodistro https://other.example/x\n";

  const ServiceDetection found = detect_services(clients, surroundings({{"http_proxy", "http://parent.example:3128/"}}, {{"/etc/os-release", "VERSION_CODENAME=bookworm\n"}}));

  ASSERT_EQ(found.services.size(), 3U);
  EXPECT_EQ(found.services[0].env.at("NPM_CONFIG_REGISTRY"), "https://npm.example/");
  EXPECT_EQ(found.services[0].hosts.back().host, "tar.example");
  EXPECT_EQ(found.services[1].env.at("GOPROXY"), "https://go.example");
  EXPECT_EQ(found.services[1].hosts.back().host, "sum.example");
  EXPECT_EQ(found.services[2].hosts, (std::vector<model::ServiceHost>{{.host = "deb.example", .port = 80}, {.host = "sec.example", .port = 80}}));
  EXPECT_EQ(found.services[2].via, "parent.example:3128");
}

TEST(ServiceDetectTest, SaysWhatIsNotInstalled) {
  FakeClients clients;

  const ServiceDetection found = detect_services(clients, surroundings());

  EXPECT_TRUE(found.services.empty());
  EXPECT_EQ(found.notes.size(), 4U);
}

TEST(NodeClientRunnerTest, ReturnsTheOutputAndTypesTheFailures) {
  NodeClientRunner runner(std::chrono::milliseconds(200));

  EXPECT_EQ(runner.run({"echo", "a b"}).value(), "a b\n");
  EXPECT_EQ(runner.run({"dsec-no-such-program"}).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(runner.run({"false"}).error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(runner.run({"tail", "-f", "/dev/null"}).error().code(), ErrorCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace dsec::edge
