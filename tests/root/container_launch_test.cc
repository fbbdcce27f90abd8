// The engine makes and ends real sandboxes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "backend/container/record.h"
#include "root/support/engine.h"
#include "sys/cgroup.h"
#include "sys/file.h"
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

// The slot, and with it the cgroup of its first command, is another sandbox's by then.
TEST_F(ContainerLaunchTest, AKillThatComesAfterTheEndReachesNobody) {
  Engine engine({.ready_slots = "1"});
  const auto slot_of = [](backend::Instance& instance) { return backend::container::decode_record(instance.record()).value().slot; };
  auto ended = std::move(engine.launch()).value();
  const auto late = ended->first_operation();
  ASSERT_NE(late, nullptr);
  ASSERT_TRUE(ended->destroy(soon()).ok());
  std::vector<std::unique_ptr<backend::Instance>> others;
  do others.push_back(std::move(engine.launch()).value());
  while (slot_of(*others.back()) != slot_of(*ended) && others.size() < 8);
  ASSERT_EQ(slot_of(*others.back()), slot_of(*ended));
  const auto own = others.back()->first_operation();
  ASSERT_NE(own, nullptr);
  const pid_t child = ::fork();
  if (child == 0) ::pause(), ::_exit(0);
  ASSERT_TRUE(sys::write_at(own->cgroup_fd(), "cgroup.procs", std::to_string(child)).ok());

  EXPECT_TRUE(late->kill().ok());
  const bool lives = ::waitpid(child, nullptr, WNOHANG) == 0;
  const bool seen = late->populated();
  EXPECT_TRUE(own->kill().ok());
  int status = 0;
  ::waitpid(child, &status, 0);

  EXPECT_TRUE(lives);
  EXPECT_FALSE(seen);
  EXPECT_TRUE(WIFSIGNALED(status));
  for (auto& instance : others) EXPECT_TRUE(instance->destroy(soon()).ok());
}

}  // namespace
}  // namespace dsec::testing
