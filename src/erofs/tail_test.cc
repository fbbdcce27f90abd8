// Files that lie in two places: whole blocks in the data file, the rest beside
// the inode; and inodes of 32 bytes. By the writer, the reader and the checker.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <memory>

#include "erofs/checker.h"
#include "erofs/content_store.h"
#include "erofs/hand_made_image.h"
#include "erofs/reader.h"
#include "erofs/writer.h"
#include "sys/fd.h"

namespace dsec::erofs {
namespace {

using test::get;
using test::HandMadeImage;
using test::put;
constexpr HandMadeImage::Id kRoot = HandMadeImage::kRoot;

Verdict check(std::string metadata) {
  test::fix_checksum(metadata);
  return check_image(std::make_unique<MemorySource>(metadata)).value();
}

// An image in memory.
struct Image {
  sys::Fd metadata{::memfd_create("metadata", MFD_CLOEXEC)};
  sys::Fd data{::memfd_create("data", MFD_CLOEXEC)};
  Writer writer;

  explicit Image(WriterOptions options = {}) : writer(metadata.get(), data.get(), std::move(options)) {}
  void add(const std::string& path, const std::string& content, const EntryMeta& meta = {}) {
    ASSERT_TRUE(writer.begin_file(path, meta, {.bytes = content.size()}).ok());
    ASSERT_TRUE(writer.write(content).ok());
    ASSERT_TRUE(writer.finish_file().ok());
  }
  Reader reader(const WrittenImage& written) const {
    std::vector<std::unique_ptr<Source>> devices;
    if (written.data_bytes != 0) devices.push_back(FileSource::open(sys::Fd(::dup(data.get()))).value());
    return Reader::open(FileSource::open(sys::Fd(::dup(metadata.get()))).value(), std::move(devices)).value();
  }
  bool sound() const { return check_image(FileSource::open(sys::Fd(::dup(metadata.get()))).value())->sound(); }
};

std::string content_of(Reader& reader, const std::string& path) {
  const StoredInode node = reader.lookup(path).value();
  std::string out(static_cast<std::size_t>(node.size), '\0');
  EXPECT_EQ(reader.read(node, 0, out).value(), out.size());
  return out;
}

TEST(TailTest, IsWhatDoesNotFillABlockOfASmallFile) {
  EXPECT_EQ(tail_bytes(1, 4000), 1u);
  EXPECT_EQ(tail_bytes(3072, 4000), 3072u);
  EXPECT_EQ(tail_bytes(3073, 4000), 0u) << "little would be saved";
  EXPECT_EQ(tail_bytes(4096, 4000), 0u);
  EXPECT_EQ(tail_bytes(4097, 4000), 1u);
  EXPECT_EQ(tail_bytes(4097 + 100, 100), 0u) << "no room";
  EXPECT_EQ(tail_bytes((32 << 10) - 4095, 4000), 1u);
  EXPECT_EQ(tail_bytes((32 << 10) + 1, 4000), 0u) << "stays whole, for DAX";
}

TEST(TailTest, EveryLengthIsReadAsItWasWritten) {
  for (const Profile profile : {Profile::kPlain, Profile::kLz4}) {
    Image image({.profile = profile});
    for (unsigned tail = 1; tail < 4096; tail++) image.add(std::to_string(tail), test::pattern((tail % 3) * 4096 + tail, tail));

    const WrittenImage written = image.writer.finish({}).value();

    ASSERT_TRUE(image.sound());
    Reader reader = image.reader(written);
    for (unsigned tail = 1; tail < 4096; tail++) {
      ASSERT_EQ(content_of(reader, "/" + std::to_string(tail)), test::pattern((tail % 3) * 4096 + tail, tail)) << tail;
    }
  }
}

TEST(TailTest, OfEqualFilesStandsBesideEachAndTheBlocksLieOnce) {
  Image image;
  for (const char* name : {"a", "b"}) image.add(name, test::pattern(4096 + 100, 1));
  image.add("c", test::pattern(4096, 1) + std::string(100, 'c'));

  const WrittenImage written = image.writer.finish({}).value();

  EXPECT_EQ(written.data_bytes, 2 * 4096u);
  ASSERT_TRUE(image.sound());
  Reader reader = image.reader(written);
  EXPECT_EQ(content_of(reader, "/a"), test::pattern(4096 + 100, 1));
  EXPECT_EQ(content_of(reader, "/b"), test::pattern(4096 + 100, 1));
  EXPECT_EQ(content_of(reader, "/c"), test::pattern(4096, 1) + std::string(100, 'c'));
}

TEST(TailTest, IsNotSharedWithAFileThatHasNoRoomForIt) {
  Image image;
  const std::string content = test::pattern(4096 + 3000, 1);
  image.add("roomy", content);
  image.add("crowded", content, {.attributes = {{"user.x", std::string(2000, 'x')}}});

  const WrittenImage written = image.writer.finish({}).value();

  EXPECT_EQ(written.data_bytes, 3 * 4096u);
  ASSERT_TRUE(image.sound());
  Reader reader = image.reader(written);
  EXPECT_EQ(content_of(reader, "/roomy"), content);
  EXPECT_EQ(content_of(reader, "/crowded"), content);
}

TEST(TailTest, ComesWithAFileOfAParent) {
  const std::string content = test::pattern(8192 + 500, 1);
  Image parent({.keep_digests = true});
  parent.add("f", content);
  ASSERT_TRUE(parent.writer.finish({}).ok());
  Image child({.parents = {parent.writer.as_parent()}});
  child.add("g", content);

  const WrittenImage written = child.writer.finish({}).value();

  EXPECT_EQ(written.data_bytes, 0u);
  std::vector<std::unique_ptr<Source>> devices;
  devices.push_back(FileSource::open(sys::Fd(::dup(parent.data.get()))).value());
  Reader reader = Reader::open(FileSource::open(sys::Fd(::dup(child.metadata.get()))).value(), std::move(devices)).value();
  EXPECT_EQ(content_of(reader, "/g"), content);
}

TEST(TailTest, IsReadAndTakenFromAnImageMadeByHand) {
  HandMadeImage image;
  const std::string content = test::pattern(3 * 4096 + 77, 3);
  image.tailed_file(kRoot, "f", content);
  image.build();
  std::vector<std::unique_ptr<Source>> devices;
  devices.push_back(std::make_unique<MemorySource>(image.data()));
  Reader reader = Reader::open(std::make_unique<MemorySource>(image.metadata()), std::move(devices)).value();

  EXPECT_EQ(content_of(reader, "/f"), content);
  EXPECT_TRUE(check(image.metadata()).sound());
}

TEST(TailTest, IsRefusedWhereItsBlocksOrItselfLieWrong) {
  HandMadeImage image;
  const auto a = image.tailed_file(kRoot, "a", test::pattern(2 * 4096 + 50, 1));
  const auto b = image.tailed_file(kRoot, "b", test::pattern(2 * 4096 + 60, 2));
  image.build();
  const auto first = get<Inode>(image.metadata(), image.offset_of(a));
  const auto changed = [&](auto change) {
    std::string metadata = image.metadata();
    Inode inode = get<Inode>(metadata, image.offset_of(b));
    change(inode);
    put(metadata, image.offset_of(b), inode);
    return check(metadata).sound();
  };

  EXPECT_TRUE(changed([](Inode&) {}));
  EXPECT_TRUE(changed([&](Inode& inode) { inode.address = first.address; })) << "equal blocks, another tail";
  EXPECT_FALSE(changed([&](Inode& inode) { inode.address = first.address + 1; })) << "partly another's";
  EXPECT_FALSE(changed([](Inode& inode) { inode.address = kNoBlock; }));
  EXPECT_FALSE(changed([](Inode& inode) { inode.address += 1; })) << "beyond the data file";
  EXPECT_FALSE(changed([](Inode& inode) { inode.size += 4096; })) << "beyond the data file";
  EXPECT_FALSE(changed([](Inode& inode) { inode.size += 4000; })) << "across the end of a block";
  EXPECT_FALSE(changed([](Inode& inode) { inode.size -= 10; })) << "bytes of nobody";
}

TEST(ShortInodeTest, IsWhatFilesOfTheMostCommonTimeGet) {
  Image image;
  for (const char* name : {"a", "b"}) image.add(name, "x", {.mtime_seconds = 1'600'000'000, .mtime_nanoseconds = 3});
  image.add("other", "x", {.mtime_seconds = 1'700'000'000});
  image.add("owned", "x", {.uid = 70'000, .mtime_seconds = 1'600'000'000, .mtime_nanoseconds = 3});

  const WrittenImage written = image.writer.finish({.unstated_seconds = 5}).value();

  ASSERT_TRUE(image.sound());
  Reader reader = image.reader(written);
  for (const char* path : {"/a", "/b"}) {
    EXPECT_EQ(reader.lookup(path)->inode_bytes, sizeof(ShortInode));
    EXPECT_EQ(reader.lookup(path)->seconds, 1'600'000'000);
    EXPECT_EQ(reader.lookup(path)->nanoseconds, 3u);
  }
  EXPECT_EQ(reader.lookup("/other")->seconds, 1'700'000'000);
  EXPECT_EQ(reader.lookup("/owned")->uid, 70'000u);
  EXPECT_EQ(reader.root()->seconds, 5);
}

TEST(ShortInodeTest, IsRefusedWithReservedBytesOrAWrongNumber) {
  HandMadeImage image;
  const auto file = image.inline_file(kRoot, "f", "x");
  image.make_short(file);
  image.build();
  const auto changed = [&](auto change) {
    std::string metadata = image.metadata();
    ShortInode inode = get<ShortInode>(metadata, image.offset_of(file));
    change(inode);
    put(metadata, image.offset_of(file), inode);
    return check(metadata).sound();
  };

  EXPECT_TRUE(changed([](ShortInode&) {}));
  EXPECT_FALSE(changed([](ShortInode& inode) { inode.reserved = 1; }));
  EXPECT_FALSE(changed([](ShortInode& inode) { inode.reserved_end = 1; }));
  EXPECT_FALSE(changed([](ShortInode& inode) { inode.number++; }));
  EXPECT_FALSE(changed([](ShortInode& inode) { inode.links = 0; }));
  EXPECT_FALSE(changed([](ShortInode& inode) { inode.format = kExtendedInode | 4; })) << "its other half belongs to nobody";
}

}  // namespace
}  // namespace dsec::erofs
