// Reads past the kernel on a mount of 3FS, with a library in its place that does
// what a daemon of 3FS may do. No test here has seen a real one.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "origin/directory_origin.h"
#include "origin/store_file.h"
#include "support/usrbio_mock.h"

namespace dsec::origin {
namespace {

const std::string kMock = DSEC_TEST_BIN "/libusrbio_mock.so";

Deadline soon() { return Deadline::in(std::chrono::seconds(20)); }

std::string noise(std::size_t size) {
  std::string out(size, '\0');
  std::uint32_t state = 9;
  for (char& byte : out) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return out;
}

class UsrbioTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/var/tmp/dsec-usrbio-XXXXXX";
    folder_ = ::mkdtemp(name);
    void* const library = ::dlopen(kMock.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << ::dlerror();
    mock_ = static_cast<UsrbioMock*>(::dlsym(library, "usrbio_mock"));
    ASSERT_NE(mock_, nullptr);
    mount_as("fuse.hf3fs");
    mock_->is_3fs = true;
    mock_->delay_us = mock_->full_every = mock_->fails_with = 0;
    mock_->reorders = mock_->short_reads = mock_->hangs = mock_->refuses_files = mock_->says_too_much = false;
    mock_->reads = 0;
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
    EXPECT_EQ(mock_->registered, 0) << "every file was taken back before it was closed";
  }

  // The kernel's list of mounts, as if the folder's file system were of that type.
  void mount_as(const std::string& type) const {
    struct stat st {};
    ASSERT_EQ(::stat(folder_.c_str(), &st), 0);
    std::ofstream(mountinfo()) << "21 1 0:1 / / rw - ext4 /dev/x rw\n99 21 " << major(st.st_dev) << ":" << minor(st.st_dev) << " / /3fs rw,nosuid shared:7 master:2 - " << type
                               << " hf3fs.stage rw\n";
  }
  std::string mountinfo() const { return folder_ + "/mountinfo"; }
  std::unique_ptr<DirectoryOrigin> origin(const std::string& library = kMock) const {
    return std::move(DirectoryOrigin::create({.directory = folder_, .usrbio_library = library, .mountinfo = mountinfo()}, soon())).value();
  }
  static ObjectName put(Origin& origin, const std::string& bytes) {
    const Content content = Content::of_bytes(bytes);
    const ObjectName name{ObjectKind::kData, content.hex()};
    EXPECT_TRUE(origin.publish(name, content, soon()).ok());
    return name;
  }

  std::string folder_;
  UsrbioMock* mock_ = nullptr;
};

TEST_F(UsrbioTest, ReadsAreTheBytesOfTheFileHoweverTheRingBehaves) {
  const std::string bytes = noise((9 << 20) + 777);
  const auto store = origin();
  ASSERT_TRUE(store->is_3fs() && store->usrbio().ok());
  const ObjectName name = put(*store, bytes);
  mock_->reorders = mock_->short_reads = true;
  mock_->full_every = 3;
  mock_->delay_us = 200;
  const auto object = store->open(name, soon()).value();
  std::atomic<int> right{0};

  std::vector<std::thread> readers;
  for (unsigned i = 0; i < 12; ++i)
    readers.emplace_back([&, i] {
      const std::size_t offset = i * 100003, length = 4096 + i * 400000;
      const auto got = object->read(offset, length, soon());
      if (got.ok() && got->view() == std::string_view(bytes).substr(offset, length)) ++right;
    });
  for (std::thread& reader : readers) reader.join();

  EXPECT_EQ(right, 12);
  EXPECT_EQ(object->read(0, bytes.size(), soon()).value().view(), bytes) << "more than a request may have";
  EXPECT_GT(mock_->reads, 12u);
  EXPECT_TRUE(mock_->flags & UsrbioLibrary::kForbidHoles);
}

TEST_F(UsrbioTest, ADaemonThatDoesNotAnswerCostsTheDeadlineAndItsMemoryUntilItDoes) {
  const std::string bytes = noise(1 << 20);
  const auto store = origin();
  const auto object = store->open(put(*store, bytes), soon()).value();
  mock_->hangs = true;

  for (int i = 0; i < 16; ++i) EXPECT_EQ(object->read(0, 4096, Deadline::in(std::chrono::milliseconds(10))).error().code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(object->read(0, 4096, Deadline::in(std::chrono::milliseconds(10))).error().code(), ErrorCode::kExhausted) << "all memory is the daemon's";
  mock_->hangs = false;

  EXPECT_EQ(object->read(5, 9000, soon()).value().view(), std::string_view(bytes).substr(5, 9000));
}

TEST_F(UsrbioTest, WrongAnswersAreErrorsAndTheNextReadStartsAfresh) {
  const std::string bytes = noise(1 << 20);
  const auto store = origin();
  const auto object = store->open(put(*store, bytes), soon()).value();

  mock_->fails_with = EIO;
  EXPECT_EQ(object->read(0, 4096, soon()).error().code(), ErrorCode::kUnavailable);
  mock_->fails_with = 0;
  mock_->says_too_much = true;
  EXPECT_EQ(object->read(0, 4096, soon()).error().code(), ErrorCode::kDataFault);
  mock_->says_too_much = false;
  EXPECT_EQ(object->read(0, 4096, soon()).value().view(), std::string_view(bytes).substr(0, 4096));
  std::filesystem::resize_file(folder_ + "/" + ObjectName{ObjectKind::kData, Content::of_bytes(bytes).hex()}.path(), 8192);
  EXPECT_EQ(object->read(8192, 4096, soon()).error().code(), ErrorCode::kDataFault) << "the end of the file";
}

TEST_F(UsrbioTest, WithoutLibraryMountOrRegistrationFilesAreReadBySystemCalls) {
  const std::string bytes = noise(300000);
  const auto reads_right = [&](const std::unique_ptr<DirectoryOrigin>& store) {
    const std::uint64_t before = mock_->reads;
    const auto object = store->open(put(*store, bytes), soon()).value();
    return object->read(0, bytes.size(), soon()).value().view() == bytes && mock_->reads == before;
  };

  EXPECT_TRUE(reads_right(origin("/nowhere/lib.so")));
  EXPECT_FALSE(origin("/nowhere/lib.so")->usrbio().ok()) << "and says why";
  EXPECT_TRUE(reads_right(origin("libc.so.6"))) << "a library without the calls";
  EXPECT_TRUE(reads_right(origin("")));
  mock_->is_3fs = false;
  EXPECT_TRUE(reads_right(origin()));
  mock_->is_3fs = true;
  mount_as("ext4");
  EXPECT_TRUE(reads_right(origin()));
  mount_as("fuse.hf3fs");
  const auto store = origin();
  mock_->refuses_files = true;
  EXPECT_TRUE(store->usrbio().ok() && reads_right(store));
}

TEST(FileSystemTypeTest, IsThatOfTheLineWithTheDevice) {
  const std::string mounts = "21 1 8:1 / / rw - ext4 /dev/x rw\n30 21 0:45 / /3fs rw - fuse.hf3fs x rw\n31 21 0:450 / /y rw shared:1 - tmpfs y rw\ngarbage\n\n32 0:46";

  EXPECT_EQ(file_system_type(mounts, makedev(0, 45)), "fuse.hf3fs");
  EXPECT_EQ(file_system_type(mounts, makedev(0, 450)), "tmpfs");
  EXPECT_EQ(file_system_type(mounts, makedev(0, 4)), "");
  EXPECT_EQ(file_system_type(mounts, makedev(0, 46)), "");
  EXPECT_EQ(file_system_type("", makedev(0, 46)), "");
}

}  // namespace
}  // namespace dsec::origin
