// The engine makes and ends real sandboxes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "root/support/engine.h"
#include "sys/cgroup.h"
#include "sys/process.h"

namespace dsec::testing {
namespace {

using ::testing::HasSubstr;

class ContainerLaunchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  }
};

TEST_F(ContainerLaunchTest, AnAgentAnswersAndACommandRunsAsRootOfTheSandbox) {
  Engine engine;

  auto instance = engine.launch();

  ASSERT_TRUE(instance.ok()) << instance.error().message();
  EXPECT_TRUE(says_hello(**instance));
  EXPECT_THAT(run_inside(**instance, "hostname"), HasSubstr("box"));
  EXPECT_TRUE((*instance)->destroy(soon()).ok());
}

// Linux kills whatever is cloned into a cgroup that was killed once.
TEST_F(ContainerLaunchTest, ASlotThatWasKilledIsNotUsedAgain) {
  Engine engine({.ready_slots = "1"});
  for (int round = 0; round < 6; ++round) {
    auto instance = engine.launch();
    ASSERT_TRUE(instance.ok()) << "round " << round << ": " << instance.error().message();
    ASSERT_TRUE(says_hello(**instance)) << "round " << round;
    auto host = sys::CgroupHost::detect();
    auto tree = sys::CgroupTree::create(host, sys::cgroup_name(engine.data_dir()));
    ASSERT_TRUE(tree.ok());
    const auto slots = tree->slots();
    ASSERT_TRUE(slots.ok());
    for (const std::string& slot : *slots)
      if (tree->populated(slot)) ASSERT_TRUE(tree->kill(slot).ok());
    ASSERT_TRUE((*instance)->destroy(soon()).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the pool takes the slot back meanwhile
  }
}

}  // namespace
}  // namespace dsec::testing
