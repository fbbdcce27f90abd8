// The cgroups of a node: who has them, and what is left when nobody does.
#include "sys/cgroup.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>

#include "sys/file.h"
#include "sys/process.h"

namespace dsec::sys {
namespace {

class CgroupTreeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  }
  void TearDown() override { (void)CgroupTree::remove(host_, name_); }

  bool is_abandoned(bool populated) const {
    const auto found = CgroupTree::abandoned(host_);
    return std::any_of(found.begin(), found.end(), [&](const AbandonedCgroups& tree) { return tree.name == name_ && tree.populated == populated; });
  }
  bool exists() const { return ::access((host_.unified + "/" + name_).c_str(), F_OK) == 0; }

  const CgroupHost host_ = CgroupHost::detect();
  const std::string name_ = cgroup_name("/no/such/place/" + std::to_string(::getpid()));
};

TEST_F(CgroupTreeTest, ATreeThatSomebodyHasIsNoLeftover) {
  const auto tree = CgroupTree::create(host_, name_);
  ASSERT_TRUE(tree.ok()) << tree.error().message();

  const auto removed = CgroupTree::remove_abandoned(host_, name_);

  EXPECT_FALSE(is_abandoned(false));
  EXPECT_FALSE(removed.ok());
  EXPECT_TRUE(exists());
}

TEST_F(CgroupTreeTest, ATreeThatNobodyHasIsFoundAndRemovedWithItsSlots) {
  ASSERT_TRUE(CgroupTree::create(host_, name_).value().make_slot("s7", 0).ok());
  ASSERT_TRUE(is_abandoned(false));

  const auto removed = CgroupTree::remove_abandoned(host_, name_);

  ASSERT_TRUE(removed.ok()) << removed.error().message();
  EXPECT_FALSE(exists());
  EXPECT_FALSE(is_abandoned(false));
}

TEST_F(CgroupTreeTest, ATreeInWhichSomethingRunsIsNamedAndLeftAlone) {
  const pid_t child = ::fork();
  if (child == 0) ::pause(), ::_exit(0);
  Result<void> entered;
  {
    const CgroupTree owner = CgroupTree::create(host_, name_).value();  // until something runs inside, any node's sweep may take it
    entered = owner.make_slot("s7", 0);
    if (entered.ok()) entered = write_at(AT_FDCWD, host_.unified + "/" + name_ + "/slots/s7/payload/cgroup.procs", std::to_string(child));
  }

  const auto removed = CgroupTree::remove_abandoned(host_, name_);
  const bool named = is_abandoned(true);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);

  EXPECT_TRUE(entered.ok()) << entered.error().message();
  EXPECT_FALSE(removed.ok());
  EXPECT_TRUE(named);
  EXPECT_TRUE(exists());
}

TEST_F(CgroupTreeTest, TheFirstOperationsCgroupIsKeptUntilItIsKilledAndOthersAreNot) {
  const CgroupTree tree = CgroupTree::create(host_, name_).value();
  ASSERT_TRUE(tree.make_slot("s7", 0).ok());
  const Fd payload = tree.open_payload("s7").value();
  const auto first = [&] { return open_at(payload.get(), CgroupTree::kFirstOperation, O_RDONLY | O_DIRECTORY).value(); };
  const auto inode = [](const Fd& directory) {
    struct stat status {};
    EXPECT_EQ(::fstat(directory.get(), &status), 0);
    return status.st_ino;
  };
  const ino_t made = inode(first());
  ASSERT_TRUE(CgroupTree::make_operation(payload.get(), "op-other").ok());

  ASSERT_TRUE(tree.renew_slot("s7").ok());
  const ino_t kept = inode(first());
  const bool other_is_gone = ::faccessat(payload.get(), "op-other", F_OK, 0) != 0;
  ASSERT_TRUE(CgroupTree::kill_operation(first().get()).ok());
  ASSERT_TRUE(tree.renew_slot("s7").ok());

  EXPECT_EQ(kept, made);
  EXPECT_TRUE(other_is_gone);
  EXPECT_NE(inode(first()), made);
}

TEST_F(CgroupTreeTest, WhoMakesATreeWhileItIsSweptHasOneThatWorks) {
  std::atomic<bool> stop{false};
  std::thread sweeper([&] {
    while (!stop) (void)CgroupTree::remove_abandoned(host_, name_);
  });

  Result<void> made;
  for (int i = 0; i < 200 && made.ok(); ++i) {
    const auto tree = CgroupTree::create(host_, name_);
    made = tree.ok() ? tree->make_slot("s1", 0) : Result<void>(tree.error());
  }
  stop = true;
  sweeper.join();

  EXPECT_TRUE(made.ok()) << made.error().message();
}

}  // namespace
}  // namespace dsec::sys
