#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>

#include "sys/file.h"
#include "sys/unix_socket.h"
#include "sys/worker_pool.h"

namespace dsec::sys {
namespace {

class TemporaryDirectory {
 public:
  TemporaryDirectory() { DSEC_CHECK(::mkdtemp(path_) != nullptr); }
  ~TemporaryDirectory() { (void)remove_tree_at(AT_FDCWD, path_); }
  std::string path(const std::string& name) const { return std::string(path_) + "/" + name; }
  Fd open() const { return open_at(AT_FDCWD, path_, O_RDONLY | O_DIRECTORY).value(); }

 private:
  char path_[32] = "/tmp/dsec-sys-XXXXXX";
};

TEST(FileTest, ReplaceFileLeavesOldOrNewContentAndNoTemporary) {
  TemporaryDirectory dir;

  ASSERT_TRUE(replace_file(dir.path("f"), "one", 0600).ok());
  ASSERT_TRUE(replace_file(dir.path("f"), "two", 0600).ok());

  EXPECT_EQ(read_file(dir.path("f")).value(), "two");
  EXPECT_FALSE(read_file(dir.path("f.new")).ok());
}

TEST(FileTest, RemoveTreeDoesNotFollowALinkOut) {
  TemporaryDirectory outside, dir;
  ASSERT_TRUE(replace_file(outside.path("canary"), "alive", 0600).ok());
  ASSERT_TRUE(make_directories(dir.path("tree/a/b"), 0700).ok());
  ASSERT_EQ(::symlink(outside.path("").c_str(), dir.path("tree/a/link").c_str()), 0);

  const Result<void> removed = remove_tree_at(dir.open().get(), "tree");

  EXPECT_TRUE(removed.ok());
  EXPECT_EQ(read_file(outside.path("canary")).value(), "alive");
  EXPECT_FALSE(open_at(AT_FDCWD, dir.path("tree"), O_RDONLY).ok());
}

TEST(FileTest, RemoveTreeEndsADeepTreeWithFewDescriptors) {
  TemporaryDirectory dir;
  ASSERT_TRUE(make_directories(dir.path("deep"), 0700).ok());
  Fd at = open_at(AT_FDCWD, dir.path("deep"), O_RDONLY | O_DIRECTORY).value();
  for (int i = 0; i < 3000; i++) {
    ASSERT_EQ(::mkdirat(at.get(), "d", 0700), 0);
    at = open_at(at.get(), "d", O_RDONLY | O_DIRECTORY).value();
  }

  const Result<void> removed = remove_tree_at(dir.open().get(), "deep");

  EXPECT_TRUE(removed.ok()) << removed.error().message();
  EXPECT_FALSE(open_at(AT_FDCWD, dir.path("deep"), O_RDONLY).ok());
}

TEST(FileTest, ReadStopsAtTheLimit) {
  TemporaryDirectory dir;
  ASSERT_TRUE(replace_file(dir.path("f"), "0123456789", 0600).ok());

  const Result<std::string> text = read_file(dir.path("f"), 5);

  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code(), ErrorCode::kTooLarge);
}

TEST(UnixSocketTest, CarriesBytesAndDescriptors) {
  SocketPair pair = socket_pair(SOCK_SEQPACKET).value();
  TemporaryDirectory dir;
  ASSERT_TRUE(replace_file(dir.path("f"), "through", 0600).ok());
  const Fd file = open_at(AT_FDCWD, dir.path("f"), O_RDONLY).value();

  ASSERT_TRUE(send_message(pair.first.get(), "hello", {file.get()}).ok());
  const Result<SocketMessage> message = receive_message(pair.second.get(), Deadline::in(std::chrono::seconds(5)));

  ASSERT_TRUE(message.ok());
  EXPECT_EQ(message->bytes, "hello");
  ASSERT_EQ(message->fds.size(), 1u);
  EXPECT_EQ(read_all(message->fds[0].get(), 100).value(), "through");
}

TEST(UnixSocketTest, ReportsAClosedPeerAndAPassedDeadline) {
  SocketPair pair = socket_pair(SOCK_SEQPACKET).value();

  const auto late = receive_message(pair.first.get(), Deadline::in(std::chrono::milliseconds(1)));
  pair.second.reset();
  const auto closed = receive_message(pair.first.get(), Deadline::in(std::chrono::seconds(5)));

  EXPECT_EQ(late.error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(closed.error().code(), ErrorCode::kUnavailable);
}

TEST(WorkerPoolTest, RunsEverythingThatItAccepted) {
  std::atomic<int> ran{0};
  {
    WorkerPool pool({.name = "test", .threads = 2, .queue_limit = 1000});
    for (int i = 0; i < 500; i++) ASSERT_TRUE(pool.submit([&ran] { ran++; }).ok());
  }
  EXPECT_EQ(ran, 500);
}

TEST(WorkerPoolTest, AFullQueueIsRefused) {
  SocketPair gate = socket_pair(SOCK_STREAM).value();
  WorkerPool pool({.name = "test", .threads = 1, .queue_limit = 1});
  const auto blocked = [&gate] {
    char c;
    EXPECT_EQ(::read(gate.second.get(), &c, 1), 1);
  };

  Result<void> last;
  for (int i = 0; i < 3 && last.ok(); i++) last = pool.submit(blocked);

  ASSERT_FALSE(last.ok());
  EXPECT_EQ(last.error().code(), ErrorCode::kExhausted);
  ASSERT_EQ(::write(gate.first.get(), "xx", 2), 2);
}

}  // namespace
}  // namespace dsec::sys
