// The engine makes and ends real sandboxes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "root/support/engine.h"
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

}  // namespace
}  // namespace dsec::testing
