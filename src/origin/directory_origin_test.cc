// What a directory does beyond the port's contract: hangs, sticky errors, what
// a crash leaves. A fifo stands for a file whose servers are gone: its open
// does not come back until somebody writes to it.
#include "origin/directory_origin.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>

namespace dsec::origin {
namespace {

namespace fs = std::filesystem;

Deadline in_ms(int ms) { return Deadline::in(std::chrono::milliseconds(ms)); }
Deadline soon() { return in_ms(30'000); }

class DirectoryOriginTest : public testing::Test {
 protected:
  DirectoryOriginTest() {
    std::string pattern = "/var/tmp/origin-test-XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    origin_ = std::move(DirectoryOrigin::create({.directory = directory_, .threads = {.threads = 4, .given_up = 2}}, soon())).value();
  }
  ~DirectoryOriginTest() override {
    origin_.reset();
    fs::remove_all(directory_);
  }
  std::string path(const ObjectName& name) const { return directory_ + "/" + name.path(); }
  ObjectName put(const std::string& bytes) {
    const Content content = Content::of_bytes(bytes);
    const ObjectName name{ObjectKind::kData, content.hex()};
    EXPECT_TRUE(origin_->publish(name, content, soon()).ok());
    return name;
  }
  ObjectName make_stuck(char digit) {
    const ObjectName name{ObjectKind::kData, std::string(64, digit)};
    fs::create_directories(fs::path(path(name)).parent_path());
    EXPECT_EQ(::mkfifo(path(name).c_str(), 0600), 0);
    return name;
  }
  // Lets the opens of the fifo come back, and waits until they have.
  void release(const ObjectName& name) {
    const int fd = ::open(path(name).c_str(), O_RDWR | O_CLOEXEC);
    while (origin_->given_up() > 0) std::this_thread::yield();
    ::close(fd);
  }

  std::string directory_;
  std::unique_ptr<DirectoryOrigin> origin_;
};

TEST_F(DirectoryOriginTest, ReturnsByTheDeadlineWhenTheFileSystemDoesNot) {
  const ObjectName stuck = make_stuck('a');

  EXPECT_EQ(origin_->open(stuck, in_ms(20)).error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(origin_->given_up(), 1U);

  release(stuck);
}

TEST_F(DirectoryOriginTest, RefusesWhenTooManyCallsAreStuckAndGoesOnWhenTheyComeBack) {
  const ObjectName good = put("good");
  const ObjectName stuck = make_stuck('a');
  EXPECT_EQ(origin_->open(stuck, in_ms(20)).error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(origin_->open(good, soon()).ok()) << "one stuck call holds up nobody else";
  EXPECT_EQ(origin_->open(stuck, in_ms(20)).error().code(), ErrorCode::kDeadlineExceeded);

  EXPECT_EQ(origin_->open(good, soon()).error().code(), ErrorCode::kExhausted);
  release(stuck);
  EXPECT_TRUE(origin_->open(good, soon()).ok());
}

TEST_F(DirectoryOriginTest, CanBeClosedWhileCallsAreStuck) {
  const ObjectName stuck = make_stuck('a');
  EXPECT_EQ(origin_->open(stuck, in_ms(20)).error().code(), ErrorCode::kDeadlineExceeded);

  auto closed = std::async(std::launch::async, [this] { origin_.reset(); });

  EXPECT_EQ(closed.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  ::close(::open(path(stuck).c_str(), O_RDWR | O_CLOEXEC));
}

TEST_F(DirectoryOriginTest, OpensTheFileAnewAfterAnError) {
  const ObjectName name = put("0123456789");
  const std::unique_ptr<Object> object = origin_->open(name, soon()).value();
  fs::resize_file(path(name), 5);
  EXPECT_EQ(object->read(0, 10, soon()).error().code(), ErrorCode::kDataFault) << "a short answer";
  std::ofstream(path(name) + ".new") << "abcdefghij";
  fs::rename(path(name) + ".new", path(name));

  const Result<Buffer> got = object->read(0, 10, soon());

  ASSERT_TRUE(got.ok()) << got.error().message();
  EXPECT_EQ(got->view(), "abcdefghij");
}

TEST_F(DirectoryOriginTest, LeavesNothingBesideTheObjects) {
  const ObjectName name = put("bytes");
  EXPECT_EQ(origin_->publish({ObjectKind::kManifest, name.hex}, Content::of_bytes("one"), soon()).ok(), true);
  EXPECT_EQ(origin_->publish({ObjectKind::kManifest, name.hex}, Content::of_bytes("two"), soon()).error().code(), ErrorCode::kConflict);
  origin_.reset();

  EXPECT_TRUE(fs::is_empty(directory_ + "/.incoming"));
}

TEST_F(DirectoryOriginTest, AnUnfinishedUploadIsNoObject) {
  fs::create_directories(directory_ + "/.incoming");
  std::ofstream(directory_ + "/.incoming/0123") << "half";

  EXPECT_TRUE(origin_->list("", 10, soon()).value().names.empty());
}

TEST_F(DirectoryOriginTest, AnErrorLeavesTheNameFree) {
  fs::create_directories(directory_);
  std::ofstream(directory_ + "/.incoming") << "in the way";
  const Content content = Content::of_bytes("bytes");
  const ObjectName name{ObjectKind::kData, content.hex()};

  EXPECT_FALSE(origin_->publish(name, content, soon()).ok());
  EXPECT_EQ(origin_->open(name, soon()).error().code(), ErrorCode::kNotFound);
  fs::remove(directory_ + "/.incoming");
  EXPECT_TRUE(origin_->publish(name, content, soon()).ok());
}

TEST_F(DirectoryOriginTest, ALinkIsNotFollowed) {
  const ObjectName name{ObjectKind::kManifest, std::string(64, 'a')};
  fs::create_directories(fs::path(path(name)).parent_path());
  fs::create_symlink("/etc/passwd", path(name));

  EXPECT_EQ(origin_->open(name, soon()).error().code(), ErrorCode::kInvalidArgument);
}

TEST(DirectoryOriginCreateTest, RefusesWhatIsNoDirectory) {
  EXPECT_EQ(DirectoryOrigin::create({.directory = "/etc/passwd"}, soon()).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(DirectoryOrigin::create({.directory = "relative"}, soon()).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(DirectoryOrigin::create({.directory = "/nowhere/at/all"}, soon()).error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace dsec::origin
