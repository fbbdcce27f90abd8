// The upper of a running sandbox, found and opened for a reader.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>

#include "root/support/engine.h"
#include "sys/file.h"
#include "sys/mounts.h"

namespace dsec::testing {
namespace {

class ContainerWrittenTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    if (!GetParam()) return;
    // As the pool's: a file system of no mount namespace.
    auto disk = sys::FilesystemContext::open("tmpfs");
    ASSERT_TRUE(disk.ok());
    disk_ = disk->mount(MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV).value();
    layer_ = {backend::WritableLayer::Kind::kDirectory, disk_.get(), 0};
  }
  std::unique_ptr<backend::Instance> launch() {
    backend::Rootfs rootfs = engine_.rootfs();
    if (GetParam()) rootfs.upper = layer_;
    auto made = engine_.backend().launch(engine_.spec(), rootfs, soon());
    EXPECT_TRUE(made.ok()) << made.error().message();
    return made.ok() ? std::move(*made) : nullptr;
  }

  Engine engine_;
  sys::Fd disk_;
  backend::WritableLayer layer_;
};

TEST_P(ContainerWrittenTest, ShowsWhatTheSandboxWroteToAReaderThatCannotChangeIt) {
  const auto instance = launch();
  ASSERT_NE(instance, nullptr);
  ASSERT_TRUE(says_hello(*instance));
  run_inside(*instance, "echo written > /made; chown 7 /made");

  const auto tree = instance->open_written(layer_);

  ASSERT_TRUE(tree.ok()) << tree.error().message();
  EXPECT_EQ(sys::read_file_at(tree->directory.get(), "made").value(), "written\n");
  struct stat st {};
  ASSERT_EQ(::fstatat(tree->directory.get(), "made", &st, 0), 0);
  EXPECT_EQ(st.st_uid, tree->first_id + 7);
  EXPECT_LT(::openat(tree->directory.get(), "made", O_WRONLY | O_CLOEXEC), 0);
  EXPECT_EQ(errno, EROFS);
  EXPECT_LT(::openat(tree->directory.get(), "../work", O_RDONLY | O_CLOEXEC), 0) << "nothing but the upper";
  EXPECT_TRUE(instance->destroy(soon()).ok());
}

TEST_P(ContainerWrittenTest, FindsItAgainAfterARestartOfTheBackend) {
  auto instance = launch();
  ASSERT_NE(instance, nullptr);
  ASSERT_TRUE(says_hello(*instance));
  run_inside(*instance, "echo written > /made");
  const std::string record = instance->record();
  instance.reset();
  engine_.restart_backend();

  auto adopted = engine_.backend().adopt(record);
  ASSERT_TRUE(adopted.ok()) << adopted.error().message();
  const auto tree = (*adopted)->open_written(layer_);

  ASSERT_TRUE(tree.ok()) << tree.error().message();
  EXPECT_EQ(sys::read_file_at(tree->directory.get(), "made").value(), "written\n");
  EXPECT_TRUE((*adopted)->destroy(soon()).ok());
}

TEST_P(ContainerWrittenTest, IsReadableUntilItIsClosedAndNotOpenedAfterTheEnd) {
  const auto instance = launch();
  ASSERT_NE(instance, nullptr);
  ASSERT_TRUE(says_hello(*instance));
  run_inside(*instance, "echo written > /made");
  const auto tree = instance->open_written(layer_);
  ASSERT_TRUE(tree.ok()) << tree.error().message();

  ASSERT_TRUE(instance->destroy(soon()).ok());

  EXPECT_EQ(sys::read_file_at(tree->directory.get(), "made").value(), "written\n");
  const auto late = instance->open_written(layer_);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code(), ErrorCode::kConflict);
}

INSTANTIATE_TEST_SUITE_P(Uppers, ContainerWrittenTest, ::testing::Values(false, true), [](const auto& info) { return std::string(info.param ? "on_disk" : "in_memory"); });

}  // namespace
}  // namespace dsec::testing
