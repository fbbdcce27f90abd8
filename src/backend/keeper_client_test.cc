// The client against the real keeper program.
#include "backend/keeper_client.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>

#include <csignal>
#include <fstream>

#include "sys/file.h"

namespace dsec::backend {
namespace {

class KeeperClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(directory_), nullptr);
    if (::access(program_.c_str(), X_OK) != 0) GTEST_SKIP() << "dsec-keeper is not built at " << program_;
    auto client = KeeperClient::start_or_find({directory_, program_});
    ASSERT_TRUE(client.ok()) << client.error().message();
    client_ = std::move(client).value();
  }
  void TearDown() override {
    if (client_) {
      const sys::Fd gone = keeper_pidfd();
      EXPECT_TRUE(client_->stop().ok());
      wait_for(gone);
    }
    (void)sys::remove_tree_at(AT_FDCWD, directory_);
  }
  sys::Fd keeper_pidfd() {
    return sys::Fd(static_cast<int>(::syscall(SYS_pidfd_open, client_->status().value().pid, 0)));
  }
  static void wait_for(const sys::Fd& pidfd) {
    pollfd p{pidfd.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&p, 1, 10'000), 1);
  }
  sys::Fd file_with(const std::string& text) {
    const std::string path = std::string(directory_) + "/file";
    EXPECT_TRUE(sys::replace_file(path, text, 0600).ok());
    return sys::open_at(AT_FDCWD, path, O_RDONLY).value();
  }

  char directory_[32] = "/tmp/dsec-keeper-XXXXXX";
  const std::string program_ = DSEC_TEST_BIN "/dsec-keeper";
  std::unique_ptr<KeeperClient> client_;
};

TEST_F(KeeperClientTest, KeepsDescriptorsForAnotherClient) {
  ASSERT_TRUE(client_->put("layer/a", file_with("content").get()).ok());
  auto other = KeeperClient::start_or_find({directory_, program_}).value();

  const auto found = other->get("layer/");

  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), 1u);
  EXPECT_EQ((*found)[0].name, "layer/a");
  EXPECT_EQ(sys::read_all((*found)[0].fd.get(), 100).value(), "content");
  EXPECT_EQ(other->status()->pid, client_->status()->pid);
}

TEST_F(KeeperClientTest, HandsBackMoreDescriptorsThanOneMessageHolds) {
  const sys::Fd file = file_with("x");
  for (int i = 0; i < 250; i++) ASSERT_TRUE(client_->put("many/" + std::to_string(i), file.get()).ok());

  EXPECT_EQ(client_->get("many/")->size(), 250u);
  ASSERT_TRUE(client_->drop("many/7").ok());
  EXPECT_EQ(client_->get("many/")->size(), 249u);
  EXPECT_EQ(client_->get("other/")->size(), 0u);
}

TEST_F(KeeperClientTest, StartsAnotherKeeperWithTheSameContentAfterAKill) {
  ASSERT_TRUE(client_->put("layer/a", file_with("content").get()).ok());
  const sys::Fd first = keeper_pidfd();
  const int first_pid = client_->status()->pid;
  ASSERT_EQ(::syscall(SYS_pidfd_send_signal, first.get(), SIGKILL, nullptr, 0), 0);
  wait_for(first);

  const auto found = client_->get("layer/");

  ASSERT_TRUE(found.ok()) << found.error().message();
  EXPECT_EQ(found->size(), 1u);
  EXPECT_NE(client_->status()->pid, first_pid);
}

TEST_F(KeeperClientTest, RunsAProgramAgainWhenItEnds) {
  const std::string fifo = std::string(directory_) + "/started";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const sys::Fd starts = sys::open_at(AT_FDCWD, fifo, O_RDWR).value();

  ASSERT_TRUE(client_->start_program("short", {"/bin/sh", "-c", "echo >> " + fifo}).ok());

  for (int i = 0; i < 3; i++) {
    pollfd p{starts.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&p, 1, 10'000), 1);
    char c;
    ASSERT_EQ(::read(starts.get(), &c, 1), 1);
  }
}

}  // namespace
}  // namespace dsec::backend
