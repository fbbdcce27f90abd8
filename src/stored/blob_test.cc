// Objects served from an origin that is slow, lies, or is gone.
#include "stored/blob.h"

#include <fcntl.h>

#include "stored/blob_fixture.h"

namespace dsec::stored {
namespace {

TEST_F(BlobTest, RangesOfEveryKindAreTheBytesThatWerePublished) {
  const std::string bytes = some_bytes(5 * kChunk + 12288, 1);
  const std::string hex = serve(bytes);
  const auto blobs = table();

  for (const auto& [offset, length] : std::vector<std::pair<std::uint64_t, std::size_t>>{
           {0, 4096}, {kChunk - 4096, 8192}, {100, 7}, {kChunk * 2 - 1, kChunk + 2}, {bytes.size() - 5, 4096}, {bytes.size(), 4096}, {0, bytes.size()}}) {
    const auto got = read(*blobs, hex, offset, length);
    ASSERT_TRUE(got.ok()) << got.error().message();
    EXPECT_TRUE(*got == bytes.substr(offset, length)) << offset << " " << length;
  }
  EXPECT_EQ(store_.read_bytes, bytes.size()) << "each chunk once";
}

TEST_F(BlobTest, AChunkIsFetchedOnceHoweverManyWait) {
  const std::string bytes = some_bytes(kChunk * 2, 2);
  const std::string hex = serve(bytes);
  store_.delay = std::chrono::milliseconds(50);
  const auto blobs = table();
  std::atomic<int> right{0};

  std::vector<std::thread> readers;
  for (int i = 0; i < 24; ++i)
    readers.emplace_back([&, i] {
      const std::uint64_t offset = static_cast<std::uint64_t>(i) * 4096;
      const auto got = read(*blobs, hex, offset, 16384);
      if (got.ok() && *got == bytes.substr(offset, 16384)) ++right;
    });
  for (std::thread& reader : readers) reader.join();

  EXPECT_EQ(right, 24);
  EXPECT_EQ(store_.read_bytes, kChunk);
}

TEST_F(BlobTest, WrongBytesAreAnErrorAndTheRightOnesAreReadOnceTheyAreThere) {
  const std::string bytes = some_bytes(kChunk * 2, 3);
  const std::string hex = serve(bytes);
  std::string altered = bytes;
  altered[kChunk + 77] ^= 1;
  store_.memory().replace({ObjectKind::kData, hex}, altered);
  const auto blobs = table();

  const auto first = read(*blobs, hex, 0, 4096);
  const auto second = read(*blobs, hex, kChunk, 4096);
  store_.memory().replace({ObjectKind::kData, hex}, bytes);
  const auto mended = read(*blobs, hex, kChunk, 4096);

  EXPECT_TRUE(first.ok());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), ErrorCode::kDataFault);
  EXPECT_TRUE(mended.ok());
}

TEST_F(BlobTest, AnOriginThatIsGoneFailsWhatIsNotHereAndNothingElse) {
  const std::string bytes = some_bytes(kChunk * 2, 4);
  const std::string hex = serve(bytes);
  const auto blobs = table();
  ASSERT_TRUE(read(*blobs, hex, 0, 4096).ok());
  store_.fails = true;

  EXPECT_TRUE(read(*blobs, hex, 8192, 4096).ok());
  EXPECT_FALSE(read(*blobs, hex, kChunk - 4096, 8192).ok());
  store_.fails = false;
  EXPECT_EQ(read(*blobs, hex, kChunk - 4096, 8192).value(), bytes.substr(kChunk - 4096, 8192));
}

TEST_F(BlobTest, WhatAnEarlierProcessLeftIsCheckedBeforeItIsServed) {
  const std::string bytes = some_bytes(kChunk * 3, 5);
  const std::string hex = serve(bytes);
  {
    const auto blobs = table();
    ASSERT_TRUE(read(*blobs, hex, 0, 2 * kChunk).ok());
  }
  const sys::Fd file = sys::open_at(AT_FDCWD, folder_ + "/state/" + hex + ".chunks", O_RDWR).value();
  ASSERT_EQ(::pwrite(file.get(), "x", 1, kChunk + 9), 1);  // the disk, or a crash
  store_.read_bytes = 0;
  const auto blobs = table();
  ASSERT_TRUE(blobs->load().ok());

  EXPECT_EQ(read(*blobs, hex, 0, 2 * kChunk).value(), bytes.substr(0, 2 * kChunk));
  EXPECT_EQ(store_.read_bytes, kChunk) << "the damaged one alone";
  EXPECT_EQ(budget_.used_bytes(), 5 * kChunk) << "two of the first process, two found again, one fetched again";
}

TEST_F(BlobTest, AWholeObjectIsHandedToTheLayersAndServedFromThere) {
  const std::string bytes = some_bytes(kChunk * 2 + 4096, 6);
  const std::string hex = serve(bytes);
  {
    const auto blobs = table();
    ASSERT_TRUE(read(*blobs, hex, 0, bytes.size()).ok());
    EXPECT_EQ(sys::read_file(folder_ + "/layers/" + hex + ".data", 1 << 24).value(), bytes);
    EXPECT_NE(::access((folder_ + "/state/" + hex + ".chunks").c_str(), F_OK), 0);
    EXPECT_EQ(budget_.used_bytes(), 0u);
    EXPECT_EQ(read(*blobs, hex, 5, 100).value(), bytes.substr(5, 100));
  }
  store_.fails = true;
  const auto blobs = table();

  EXPECT_EQ(read(*blobs, hex, 0, bytes.size()).value(), bytes);
}

TEST_F(BlobTest, AnIndexOfSomethingElseIsFoundOutAtTheLatestWhenAllIsThere) {
  const std::string bytes = some_bytes(kChunk * 2, 7);
  const std::string other = some_bytes(kChunk * 2, 8);
  const std::string hex = serve(bytes, other);
  store_.memory().replace({ObjectKind::kData, hex}, other);
  const auto blobs = table();
  ASSERT_TRUE(read(*blobs, hex, 0, kChunk * 2).ok()) << "each chunk is what the index says";

  EXPECT_FALSE(read(*blobs, hex, 0, 4096).ok());
  EXPECT_NE(::access((folder_ + "/layers/" + hex + ".data").c_str(), F_OK), 0);
}

TEST_F(BlobTest, AnObjectWithoutIndexIsNotThere) {
  const auto blobs = table();

  EXPECT_EQ(blobs->find(std::string(64, 'a')).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(blobs->find("../../etc/passwd").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(blobs->find_node(77).error().code(), ErrorCode::kNotFound);
}

TEST_F(BlobTest, TheBudgetHoldsAndWhatIsReadAgainOutlivesAFlood) {
  CacheBudget budget(8 * kChunk);
  const std::string hot = some_bytes(kChunk * 2, 9);
  const std::string flood = some_bytes(kChunk * 40, 10);
  const std::string hot_hex = serve(hot), flood_hex = serve(flood);
  BlobTable blobs({folder_ + "/state", ""}, store_, budget, {});
  const auto read_through = [&](const std::string& hex, std::uint64_t offset) {
    const auto blob = blobs.find(hex).value();
    std::string got;
    for (const ChunkRun& run : blob->read(offset, 4096, [&](const Result<std::string_view>& bytes) { got = *bytes; }))
      for (const std::uint64_t chunk : blob->fetch(run, Deadline::in(std::chrono::seconds(5))).kept) budget.added(blob, chunk);
    return got;
  };
  read_through(hot_hex, 0);

  for (std::uint64_t chunk = 0; chunk < 40; ++chunk) {
    EXPECT_TRUE(read_through(flood_hex, chunk * kChunk) == flood.substr(chunk * kChunk, 4096));
    EXPECT_TRUE(read_through(hot_hex, 4096) == hot.substr(4096, 4096));
    EXPECT_LE(budget.used_bytes(), 8 * kChunk);
  }

  EXPECT_EQ(blobs.counts().at(hot_hex).fetched_bytes, kChunk);
  struct stat status {};
  ASSERT_EQ(::stat((folder_ + "/state/" + flood_hex + ".chunks").c_str(), &status), 0);
  EXPECT_LE(static_cast<std::uint64_t>(status.st_blocks) * 512, 9 * kChunk) << "holes, not bytes";
}

}  // namespace
}  // namespace dsec::stored
