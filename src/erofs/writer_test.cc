#include "erofs/writer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "base/crc32c.h"
#include "erofs/block_space.h"
#include "erofs/format.h"
#include "sys/file.h"

namespace dsec::erofs {
namespace {

// An image in memory.
class WriterTest : public testing::Test {
 protected:
  WriterTest() : metadata_(::memfd_create("metadata", MFD_CLOEXEC)), data_(::memfd_create("data", MFD_CLOEXEC)) {}
  Writer& writer(WriterOptions options = {}) {
    writer_ = std::make_unique<Writer>(metadata_.get(), data_.get(), std::move(options));
    return *writer_;
  }
  Result<void> add(const std::string& path, const std::string& content, const EntryMeta& meta = {}) {
    DSEC_TRY(writer_->begin_file(path, meta, {.bytes = content.size()}));
    DSEC_TRY(writer_->write(content));
    return writer_->finish_file();
  }
  Superblock superblock() const {
    Superblock super{};
    EXPECT_EQ(::pread(metadata_.get(), &super, sizeof super, kSuperblockOffset), static_cast<ssize_t>(sizeof super));
    return super;
  }
  std::string data_bytes(std::size_t at, std::size_t size) const {
    std::string out(size, '\0');
    out.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::pread(data_.get(), out.data(), size, static_cast<off_t>(at)))));
    return out;
  }

  sys::Fd metadata_;
  sys::Fd data_;
  std::unique_ptr<Writer> writer_;
};

std::string content(std::size_t size, char with) { return std::string(size, with); }

TEST_F(WriterTest, NamesTheDataFileByItsContent) {
  writer();
  ASSERT_TRUE(add("f", content(8192, 'f')).ok());

  const WrittenImage image = writer_->finish({}).value();

  EXPECT_EQ(image.data_bytes, 8192u);
  EXPECT_EQ("sha256:" + image.data_digest, digest_of_file(data_.get()).value());
  DeviceSlot slot{};
  const Superblock super = superblock();
  ASSERT_EQ(super.extra_devices, 1);
  ASSERT_EQ(::pread(metadata_.get(), &slot, sizeof slot, super.device_table_slot * 128), 128);
  EXPECT_EQ(std::string(slot.tag, 64), image.data_digest);
  EXPECT_EQ(slot.blocks, 2u);
  EXPECT_EQ(slot.unified_address, super.blocks);
  EXPECT_EQ(image.metadata_bytes, super.blocks * 4096u);
}

TEST_F(WriterTest, ChecksumsTheSuperblock) {
  writer();
  ASSERT_TRUE(add("f", "x").ok());
  ASSERT_TRUE(writer_->finish({}).ok());

  std::string block(4096, '\0');
  ASSERT_EQ(::pread(metadata_.get(), block.data(), block.size(), 0), 4096);
  Superblock super = superblock();
  const std::uint32_t found = super.checksum;
  super.checksum = 0;
  std::memcpy(block.data() + kSuperblockOffset, &super, sizeof super);
  EXPECT_EQ(found, ~crc32c(std::string_view(block).substr(kSuperblockOffset)));
}

TEST_F(WriterTest, StoresEqualFilesOnce) {
  writer();
  for (const std::size_t size : {5000, 3'000'000}) {
    ASSERT_TRUE(add("a" + std::to_string(size), content(size, 'a')).ok());
    ASSERT_TRUE(add("b" + std::to_string(size), content(size, 'b')).ok());
    ASSERT_TRUE(add("c" + std::to_string(size), content(size, 'a')).ok());
  }

  const WrittenImage image = writer_->finish({}).value();

  EXPECT_EQ(image.data_bytes, 4096u * 2 * (1 + 733));
  EXPECT_EQ("sha256:" + image.data_digest, digest_of_file(data_.get()).value());
}

TEST_F(WriterTest, LeavesNothingOfFilesThatWereReplacedOrRemoved) {
  writer({.overlaps = Overlaps::kReplace});
  ASSERT_TRUE(add("first", content(2'000'000, '1')).ok());
  ASSERT_TRUE(add("second", content(12000, '2')).ok());
  ASSERT_TRUE(add("first", content(12000, '3')).ok());
  ASSERT_TRUE(add("d/third", content(12000, '4')).ok());
  ASSERT_TRUE(add("fourth", content(12000, '5')).ok());
  ASSERT_TRUE(writer_->remove("d").ok());

  const WrittenImage image = writer_->finish({}).value();

  EXPECT_EQ(image.inodes, 4u);
  EXPECT_EQ(image.data_bytes, 3u * 12288);
  EXPECT_EQ("sha256:" + image.data_digest, digest_of_file(data_.get()).value());
  EXPECT_EQ(data_bytes(0, 1), "2");
  EXPECT_EQ(data_bytes(12288, 1), "3");
  EXPECT_EQ(data_bytes(24576, 1), "5");
  EXPECT_EQ(data_bytes(36864, 1), "");
}

TEST_F(WriterTest, KeepsTheFileThatAHardLinkMeant) {
  writer();
  ASSERT_TRUE(add("f", content(9000, '1')).ok());
  ASSERT_TRUE(writer_->make_hard_link("link", "f").ok());
  ASSERT_TRUE(add("f", content(9000, '2')).ok());

  const WrittenImage image = writer_->finish({}).value();

  EXPECT_EQ(image.inodes, 3u);
  EXPECT_EQ(data_bytes(0, 1) + data_bytes(12288, 1), "12");
}

TEST_F(WriterTest, TellsImagesOfOneContentApartByTheirIdentity) {
  writer();
  ASSERT_TRUE(add("f", "x").ok());
  ASSERT_TRUE(writer_->finish({.identity = "one"}).ok());
  const std::string one = digest_of_file(metadata_.get()).value();
  metadata_ = sys::Fd(::memfd_create("metadata", MFD_CLOEXEC));
  writer();
  ASSERT_TRUE(add("f", "x").ok());
  ASSERT_TRUE(writer_->finish({.identity = "two"}).ok());

  EXPECT_NE(one, digest_of_file(metadata_.get()).value());
}

TEST_F(WriterTest, RefusesWhatAnImageDoesNotHold) {
  struct Case {
    const char* what;
    EntryMeta meta;
  };
  const Case cases[] = {
      {"overlayfs's own attribute", {.attributes = {{"trusted.overlay.opaque", "y"}}}},
      {"the same in the user's space", {.attributes = {{"user.overlay.opaque", "y"}}}},
      {"another security attribute", {.attributes = {{"security.ima", "y"}}}},
      {"a capability that is none", {.attributes = {{"security.capability", "nonsense"}}}},
      {"a capability of an unknown kind", {.attributes = {{"security.capability", std::string("\0\0\0\x04", 4) + std::string(16, '\0')}}}},
      {"an attribute twice", {.attributes = {{"user.a", "1"}, {"user.a", "2"}}}},
      {"a value past 64 KiB", {.attributes = {{"user.a", std::string(70'000, 'v')}}}},
      {"many long values", {.attributes = {{"user.a", std::string(40'000, 'v')}, {"user.b", std::string(40'000, 'v')}}}},
      {"a name past 255 bytes", {.attributes = {{"user." + std::string(255, 'n'), "v"}}}},
      {"a time before 1970", {.mtime_seconds = -1}},
  };
  for (const Case& refused : cases) {
    writer();
    const Result<void> made = writer_->begin_file("f", refused.meta, {.bytes = 0});
    ASSERT_FALSE(made.ok()) << refused.what;
    EXPECT_EQ(made.error().code(), ErrorCode::kInvalidArgument) << refused.what;
    EXPECT_FALSE(writer_->make_directory("d", refused.meta).ok()) << refused.what;
  }
}

TEST_F(WriterTest, RefusesMoreBytesThanTheFileHas) {
  writer();
  ASSERT_TRUE(writer_->begin_file("f", {}, {.bytes = 3}).ok());

  EXPECT_FALSE(writer_->write("four").ok());
  EXPECT_FALSE(writer_->skip(4).ok());
}

TEST_F(WriterTest, FollowsLinksOfLayersInsideTheRootOnly) {
  writer({.overlaps = Overlaps::kReplace});
  ASSERT_TRUE(writer_->make_directory("usr/lib", {}).ok());
  ASSERT_TRUE(writer_->make_symlink("lib", "usr/lib", {}).ok());
  ASSERT_TRUE(writer_->make_symlink("up", "../../../usr", {}).ok());
  ASSERT_TRUE(writer_->make_symlink("absolute", "/usr/lib", {}).ok());
  ASSERT_TRUE(writer_->make_symlink("around", "around", {}).ok());
  ASSERT_TRUE(writer_->make_symlink("nowhere", "not/there", {}).ok());

  EXPECT_TRUE(add("lib/a", "x").ok());
  EXPECT_TRUE(add("up/b", "x").ok());
  EXPECT_TRUE(add("absolute/deep/c", "x").ok());
  EXPECT_EQ(writer_->names("usr/lib").value(), (std::vector<std::string>{"a", "deep"}));
  EXPECT_EQ(writer_->names("usr").value(), (std::vector<std::string>{"b", "lib"}));
  EXPECT_EQ(add("around/d", "x").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(add("nowhere/e", "x").error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(WriterTest, FailsWhenTheDataCannotBeWritten) {
  const sys::Fd full = sys::open_at(AT_FDCWD, "/dev/full", O_RDWR).value();
  Writer failing(metadata_.get(), full.get(), {});
  Result<void> result = failing.begin_file("f", {}, {.bytes = 64 << 20});
  for (int i = 0; i < 64 && result.ok(); i++) result = failing.write(content(1 << 20, 'f'));
  if (result.ok()) result = failing.finish_file();

  const bool finished = result.ok() && failing.finish({}).ok();

  EXPECT_FALSE(finished);
}

TEST(BlockSpaceTest, NeverLetsASmallItemCrossABlockAndLosesLittle) {
  BlockSpace space(1408);
  std::uint64_t used = 1408;
  std::uint64_t state = 1;
  for (int i = 0; i < 20'000; i++) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const std::uint64_t bytes = 64 + (state >> 33) % (i % 50 == 0 ? 9000 : 2100);
    const std::uint64_t at = space.place(bytes);
    ASSERT_EQ(at % kSlotBytes, 0u);
    if (bytes <= kBlockBytes) ASSERT_EQ(at / kBlockBytes, (at + bytes - 1) / kBlockBytes);
    used += (bytes + kSlotBytes - 1) / kSlotBytes * kSlotBytes;
  }
  EXPECT_LT(space.blocks() * kBlockBytes, used * 102 / 100);
}

}  // namespace
}  // namespace dsec::erofs
