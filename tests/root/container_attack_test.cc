// Root inside a sandbox attacks, and gets nothing. Each attack that is harmless
// to the host is also run outside, where it must succeed: else the row proves
// nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <set>
#include <sstream>

#include "agent/agent_test_client.h"
#include "root/support/engine.h"

namespace dsec::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ContainerAttackTest : public ::testing::Test {
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

std::map<std::string, std::string> outcomes(const std::string& text) {
  std::map<std::string, std::string> out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (const std::size_t at = line.find(": "); at != std::string::npos) out[line.substr(0, at)] = line.substr(at + 2);
  return out;
}

TEST_F(ContainerAttackTest, EveryAttackOfRootInsideIsRefused) {
  const auto results = outcomes(shell("/bin/attack all"));

  EXPECT_GT(results.size(), 60u);
  for (const auto& [name, result] : results) {
    if (name == "kill-1") continue;  // the signal is sent, and ignored: see below
    EXPECT_THAT(result, HasSubstr("refused")) << name;
  }
  EXPECT_THAT(shell("echo alive"), HasSubstr("alive"));
}

TEST_F(ContainerAttackTest, RefusalsSayWhatProgramsExpect) {
  const auto results = outcomes(shell("/bin/attack all"));

  for (const char* name : {"umount-root", "mount-tmpfs", "pivot-root", "unshare-user", "clone-user", "bpf", "keyctl", "tiocsti", "setns-mount"})
    EXPECT_EQ(results.at(name), "refused: Operation not permitted") << name;
  for (const char* name : {"io-uring", "unknown-call"}) EXPECT_EQ(results.at(name), "refused: Function not implemented") << name;
  for (const char* name : {"vsock", "packet", "alg"}) EXPECT_EQ(results.at(name), "refused: Address family not supported by protocol") << name;
  for (const char* name : {"int80", "x32"}) EXPECT_EQ(results.at(name), "refused: No child processes") << name;  // killed
  EXPECT_EQ(results.at("clone3-user"), "refused: No space left on device");
}

TEST_F(ContainerAttackTest, TheSameProgramSucceedsOutside) {
  std::string text;
  for (const char* name : {"unshare-user", "clone3-user", "vsock", "io-uring", "add-key", "fsopen", "read-interrupts", "packet", "int80"}) {
    const std::string command = program_dir() + "/engine_attack " + name;
    FILE* pipe = ::popen(command.c_str(), "r");
    char line[256];
    while (std::fgets(line, sizeof line, pipe)) text += line;
    ::pclose(pipe);
  }

  for (const auto& [name, result] : outcomes(text)) EXPECT_EQ(result, "DONE") << name;
}

TEST_F(ContainerAttackTest, KillingEverythingLeavesTheAgentAndItsSessionsWorking) {
  shell("sleep 1000 & sleep 1000 & kill -9 -1");

  EXPECT_THAT(shell("echo again; kill -9 1; kill -STOP 1; echo still"), HasSubstr("still"));
  EXPECT_THAT(shell("ps | grep -c '[s]leep 1000'"), HasSubstr("0"));
}

TEST_F(ContainerAttackTest, TheAgentIsNotVisibleByDescriptorsOrSockets) {
  const std::string seen = shell("ls -l /proc/1/fd /proc/1/cwd 2>&1; cat /proc/net/unix; ls /proc/self/fd | wc -l; cat /proc/self/mountinfo");

  EXPECT_THAT(seen, HasSubstr("Permission denied"));
  EXPECT_THAT(seen, Not(HasSubstr(".sock")));
  EXPECT_THAT(seen, Not(HasSubstr(engine_->data_dir())));
}

TEST_F(ContainerAttackTest, WhatLiesBelowTheRootIsOutOfReach) {
  const std::string tried = shell("cd / && for i in 1 2 3 4 5 6 7 8; do cd ..; done; ls; chroot /root /bin/true; ls /p /s /old 2>&1");

  EXPECT_THAT(tried, HasSubstr("bin"));
  EXPECT_THAT(tried, HasSubstr("No such file"));
}

}  // namespace
}  // namespace dsec::testing
