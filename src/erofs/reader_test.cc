#include "erofs/reader.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "erofs/hand_made_image.h"
#include "sys/file.h"

namespace dsec::erofs {
namespace {

using test::HandMadeImage;
using test::pattern;

Reader open(const HandMadeImage& image) {
  std::vector<std::unique_ptr<Source>> devices;
  devices.push_back(std::make_unique<MemorySource>(image.data()));
  return Reader::open(std::make_unique<MemorySource>(image.metadata()), std::move(devices)).value();
}

Result<std::string> content(Reader& reader, const std::string& path) {
  DSEC_ASSIGN(const StoredInode node, reader.lookup(path));
  std::string bytes(static_cast<std::size_t>(node.size), '\x7f');
  DSEC_ASSIGN(const std::size_t got, reader.read(node, 0, bytes));
  bytes.resize(got);
  return bytes;
}

TEST(ReaderTest, ReadsFilesOfEveryLayout) {
  const HandMadeImage image = test::rich_image();
  Reader reader = open(image);

  EXPECT_EQ(content(reader, "/etc/passwd").value(), "root:x:0:0\n");
  EXPECT_EQ(content(reader, "/etc/deep/flat").value(), pattern(9000, 1));
  EXPECT_EQ(content(reader, "/twin").value(), pattern(9000, 1));
  EXPECT_EQ(content(reader, "/sparse").value(), pattern(4096, 2) + std::string(8192, '\0') + pattern(4096, 3));
  EXPECT_EQ(content(reader, "/packed").value(), std::string(100'000, 'a') + pattern(70'000, 4));
  EXPECT_EQ(content(reader, "/etc/deep/empty").value(), "");
}

TEST(ReaderTest, ReadsTheSameFromOneFile) {
  const HandMadeImage image = test::rich_image();
  const std::string joined = image.metadata() + image.data();
  Reader reader = Reader::open(std::make_unique<MemorySource>(joined)).value();

  EXPECT_EQ(content(reader, "/etc/deep/flat").value(), pattern(9000, 1));
  EXPECT_EQ(content(reader, "/packed").value(), std::string(100'000, 'a') + pattern(70'000, 4));
}

TEST(ReaderTest, ReadsAnyPartOfAFile) {
  const HandMadeImage image = test::rich_image();
  Reader reader = open(image);
  for (const char* path : {"/packed", "/sparse", "/etc/deep/flat"}) {
    const std::string whole = content(reader, path).value();
    const StoredInode node = reader.lookup(path).value();
    for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{4095}, std::size_t{4096}, whole.size() - 1, whole.size(), whole.size() + 5}) {
      std::string part(5000, 'x');

      const std::size_t got = reader.read(node, offset, part).value();

      EXPECT_EQ(part.substr(0, got), offset < whole.size() ? whole.substr(offset, 5000) : "") << path << " at " << offset;
    }
  }
}

TEST(ReaderTest, TellsWhatAnInodeSays) {
  const HandMadeImage image = test::rich_image();
  Reader reader = open(image);

  const StoredInode twice = reader.lookup("/etc/two").value();

  EXPECT_EQ(twice.nid, reader.lookup("/etc/deep/one")->nid);
  EXPECT_EQ(twice.links, 2u);
  EXPECT_EQ(twice.mode, 0100644u);
  EXPECT_EQ(twice.uid, 7u);
  EXPECT_EQ(twice.gid, 70'000u);
  EXPECT_EQ(twice.seconds, 1'700'000'000);
  EXPECT_EQ(reader.attributes(twice).value(), (std::vector<Attribute>{{"user.note", "hello"}}));
  EXPECT_EQ(reader.link_target(reader.lookup("/link").value()).value(), "etc/passwd");
}

TEST(ReaderTest, FindsEachNameOfADirectoryOfSeveralBlocks) {
  const HandMadeImage image = test::rich_image();
  Reader reader = open(image);
  ASSERT_GT(reader.lookup("/many")->blocks(), 1u);

  for (int i = 100; i < 160; ++i) EXPECT_TRUE(reader.lookup("/many/" + std::string(60, 'n') + std::to_string(i)).ok()) << i;
  for (const char* absent : {"/many/a", "/many/zzz", "/many/n", "/etc/passwd/x", "/.."})
    EXPECT_FALSE(reader.lookup(absent).ok()) << absent;
  EXPECT_EQ(reader.lookup("/many/zzz").error().code(), ErrorCode::kNotFound);
}

TEST(ReaderTest, RefusesAPathThatLeadsOut) {
  const HandMadeImage image = test::rich_image();
  Reader reader = open(image);

  for (const char* path : {"", "etc", "/etc/../etc/passwd"}) EXPECT_EQ(reader.lookup(path).error().code(), ErrorCode::kInvalidArgument) << path;
  EXPECT_TRUE(reader.lookup("//etc/./passwd").ok());
}

TEST(ReaderTest, AnswersLostOrBrokenDataWithADataFault) {
  const HandMadeImage image = test::rich_image();
  std::string torn = image.data().substr(0, image.data().size() / 2);
  std::string wrong(image.data().size(), '\xff');
  for (std::string* data : {&torn, &wrong}) {
    std::vector<std::unique_ptr<Source>> devices;
    devices.push_back(std::make_unique<MemorySource>(*data));
    Reader reader = Reader::open(std::make_unique<MemorySource>(image.metadata()), std::move(devices)).value();

    const Result<std::string> read = content(reader, "/packed");

    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().code(), ErrorCode::kDataFault) << read.error().message();
  }
}

// A follower that names a plain cluster as its head would be read from beside it.
TEST(ReaderTest, RefusesAClusterWhoseHeadIsNone) {
  HandMadeImage image;
  const auto file = image.compressed_file(HandMadeImage::kRoot, "f", std::string(65'536, 'a'));
  image.build();
  std::string metadata = image.metadata();
  const std::size_t clusters = image.body_of(file) + sizeof(CompressedHeader) + kCompressedIndexGap;
  ClusterIndex head = test::get<ClusterIndex>(metadata, clusters);
  head.advice = static_cast<std::uint16_t>(ClusterType::kPlain);
  test::put(metadata, clusters, head);
  const std::string joined = metadata + image.data();
  Reader reader = Reader::open(std::make_unique<MemorySource>(joined)).value();

  const Result<std::string> read = content(reader, "/f");

  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code(), ErrorCode::kDataFault);
}

TEST(ReaderTest, RefusesAForeignOrShortFile) {
  const HandMadeImage image = test::rich_image();
  for (const std::string& bytes : {std::string(), std::string(5000, '\0'), image.metadata().substr(0, 1100), image.metadata().substr(0, 1300)})
    EXPECT_FALSE(Reader::open(std::make_unique<MemorySource>(bytes)).ok()) << bytes.size();
}

TEST(FileSourceTest, ReadsAcrossItsWindowAndNotBeyondTheEnd) {
  char name[] = "/tmp/dsec-source-XXXXXX";
  sys::Fd file(::mkstemp(name));
  ::unlink(name);
  const std::string bytes = pattern(300'000, 9);
  ASSERT_TRUE(sys::write_all(file.get(), bytes).ok());
  const auto source = FileSource::open(std::move(file)).value();

  for (const std::size_t offset : {std::size_t{0}, std::size_t{65'530}, std::size_t{131'072}, std::size_t{299'990}}) {
    std::string part(std::min<std::size_t>(70'000, bytes.size() - offset), '\0');
    ASSERT_TRUE(source->read(offset, part).ok());
    EXPECT_EQ(part, bytes.substr(offset, part.size())) << offset;
  }
  std::string part(10, '\0');
  EXPECT_EQ(source->read(299'991, part).error().code(), ErrorCode::kDataFault);
  EXPECT_EQ(source->read(UINT64_MAX, part).error().code(), ErrorCode::kDataFault);
}

}  // namespace
}  // namespace dsec::erofs
