// What every DescriptorKeeper keeps to: the keeper program, and the memory of a test.
#include "sys/descriptor_keeper.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "backend/keeper_client.h"
#include "sys/file.h"

namespace dsec::contract {
namespace {

class MemoryKeeper final : public sys::DescriptorKeeper {
 public:
  Result<void> put(const std::string& name, int fd) override {
    DSEC_ASSIGN(sys::Fd copy, sys::duplicate(fd));
    kept_.insert_or_assign(name, std::move(copy));
    return {};
  }
  Result<std::vector<sys::KeptDescriptor>> get(const std::string& prefix) override {
    std::vector<sys::KeptDescriptor> found;
    for (const auto& [name, fd] : kept_) {
      if (!name.starts_with(prefix)) continue;
      DSEC_ASSIGN(sys::Fd copy, sys::duplicate(fd.get()));
      found.push_back({name, std::move(copy)});
    }
    return found;
  }
  Result<void> drop(const std::string& name) override {
    kept_.erase(name);
    return {};
  }

 private:
  std::map<std::string, sys::Fd> kept_;
};

class KeeperContract : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!GetParam()) {
      keeper_ = std::make_unique<MemoryKeeper>();
      return;
    }
    ASSERT_NE(::mkdtemp(directory_), nullptr);
    auto client = backend::start_or_find_keeper({.data_dir = directory_, .helper_dir = DSEC_TEST_BIN}, Deadline::in(std::chrono::seconds(10)));
    ASSERT_TRUE(client.ok()) << client.error().message();
    program_ = client->get();
    keeper_ = std::move(*client);
  }
  void TearDown() override {
    if (program_ != nullptr) EXPECT_TRUE(program_->stop(Deadline::in(std::chrono::seconds(10))).ok());
    keeper_.reset();
    if (GetParam()) (void)sys::remove_tree_at(AT_FDCWD, directory_);
  }
  static sys::Fd file(const std::string& text) {
    sys::Fd fd(::memfd_create("contract", MFD_CLOEXEC));
    EXPECT_TRUE(sys::write_all(fd.get(), text).ok());
    return fd;
  }
  static std::string text_of(const sys::Fd& fd) {
    char buffer[64];
    const ssize_t got = ::pread(fd.get(), buffer, sizeof buffer, 0);
    return got < 0 ? "" : std::string(buffer, static_cast<std::size_t>(got));
  }

  char directory_[32] = "/tmp/dsec-keep-XXXXXX";
  std::unique_ptr<sys::DescriptorKeeper> keeper_;
  backend::KeeperClient* program_ = nullptr;
};

TEST_P(KeeperContract, HandsOutWhatItWasGivenAfterTheGiverClosedIt) {
  ASSERT_TRUE(keeper_->put("layer/a", file("one").get()).ok());

  const auto found = keeper_->get("layer/");

  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), 1u);
  EXPECT_EQ((*found)[0].name, "layer/a");
  EXPECT_EQ(text_of((*found)[0].fd), "one");
  EXPECT_NE(::fcntl((*found)[0].fd.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_P(KeeperContract, ReplacesANameThatExists) {
  ASSERT_TRUE(keeper_->put("a", file("old").get()).ok());
  ASSERT_TRUE(keeper_->put("a", file("new").get()).ok());

  const auto found = keeper_->get("a");

  ASSERT_EQ(found->size(), 1u);
  EXPECT_EQ(text_of((*found)[0].fd), "new");
}

TEST_P(KeeperContract, FindsByPrefixAlone) {
  ASSERT_TRUE(keeper_->put("x/1", file("1").get()).ok());
  ASSERT_TRUE(keeper_->put("x/2", file("2").get()).ok());
  ASSERT_TRUE(keeper_->put("y/1", file("3").get()).ok());

  EXPECT_EQ(keeper_->get("x/")->size(), 2u);
  EXPECT_EQ(keeper_->get("z")->size(), 0u);
}

TEST_P(KeeperContract, ForgetsWhatIsDroppedAndDropsTwice) {
  ASSERT_TRUE(keeper_->put("a", file("1").get()).ok());

  EXPECT_TRUE(keeper_->drop("a").ok());
  EXPECT_TRUE(keeper_->drop("a").ok());

  EXPECT_TRUE(keeper_->get("a")->empty());
}

TEST_P(KeeperContract, HoldsAThousand) {
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(keeper_->put("many/" + std::to_string(i), file(std::to_string(i)).get()).ok());

  const auto found = keeper_->get("many/");

  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_EQ(found->size(), 1000u);
}

// The program alone can die.
class KeeperDeath : public KeeperContract {
 protected:
  std::uint32_t kill_keeper() {
    const std::uint32_t pid = program_->status().value().pid;
    ::kill(static_cast<pid_t>(pid), SIGKILL);
    return pid;
  }
};

TEST_P(KeeperDeath, ANewKeeperIsGivenEverythingThoughNobodyCalls) {
  ASSERT_TRUE(keeper_->put("layer/a", file("one").get()).ok());
  ASSERT_TRUE(keeper_->put("pool", file("two").get()).ok());
  backend::KeeperClient other({.data_dir = directory_, .helper_dir = DSEC_TEST_BIN});

  const std::uint32_t dead = kill_keeper();
  // Only looks: it starts no keeper and holds nothing that it could put.
  std::vector<sys::KeptDescriptor> found;
  std::uint32_t pid = dead;
  for (const Deadline deadline = Deadline::in(std::chrono::seconds(10)); found.size() < 2 && !deadline.passed();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (const auto status = other.status(); status.ok()) pid = status->pid;
    if (auto kept = other.get(""); kept.ok()) found = std::move(*kept);
  }

  EXPECT_NE(pid, dead);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(text_of(found[0].fd), "one");
  EXPECT_EQ(text_of(found[1].fd), "two");
}

TEST_P(KeeperDeath, ACallGoesThroughToTheNewKeeper) {
  ASSERT_TRUE(keeper_->put("a", file("1").get()).ok());

  for (int i = 0; i < 5; ++i) {
    (void)kill_keeper();
    ASSERT_TRUE(keeper_->put("b" + std::to_string(i), file("2").get()).ok());
  }

  EXPECT_EQ(keeper_->get("")->size(), 6u);
}

INSTANTIATE_TEST_SUITE_P(Program, KeeperDeath, ::testing::Values(true));

INSTANTIATE_TEST_SUITE_P(All, KeeperContract, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "program" : "memory"; });

}  // namespace
}  // namespace dsec::contract
