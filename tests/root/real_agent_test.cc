// The engine with the real agent: commands run as the sandbox's root, and aether
// stands where nothing inside reaches it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "agent/agent_test_client.h"
#include "root/support/engine.h"

namespace dsec::testing {
namespace {

using ::testing::HasSubstr;

class RealAgentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    engine_ = std::make_unique<Engine>(EngineOptions{.agent = program_dir() + "/dsec-agent"});
    auto launched = engine_->launch();
    ASSERT_TRUE(launched.ok()) << launched.error().message();
    instance_ = std::move(launched).value();
    auto stream = instance_->dial_agent(soon());
    ASSERT_TRUE(stream.ok()) << stream.error().message();
    client_ = std::make_unique<agent::AgentTestClient>(std::move(stream).value());
    ASSERT_TRUE(client_->hello(std::string(32, 's'), 1));
  }
  void TearDown() override {
    client_.reset();
    if (instance_) EXPECT_TRUE(instance_->destroy(soon()).ok());
  }
  std::string shell(const std::string& command) {
    const auto result = client_->shell(command);
    return result.out + result.err + (result.failed ? "failed: " + result.failed->stage + " " + result.failed->message : "");
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<backend::Instance> instance_;
  std::unique_ptr<agent::AgentTestClient> client_;
};

TEST_F(RealAgentTest, ACommandRunsAsRootInsideItsOwnNamespaces) {
  EXPECT_EQ(shell("id -u; hostname; cat /proc/1/comm"), "0\nbox\naether\n");
  EXPECT_THAT(shell("cat /proc/self/uid_map"), ::testing::MatchesRegex(" +0 +0 +65536\n"));
}

}  // namespace
}  // namespace dsec::testing
