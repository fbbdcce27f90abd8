// Objects served from an origin that is slow, lies, or is gone.
#include "stored/blob.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <thread>

#include "origin/memory_origin.h"
#include "stored/blob_table.h"
#include "stored/cache_budget.h"
#include "sys/file.h"

namespace dsec::stored {
namespace {

using origin::ChunkIndex;
using origin::Content;
using origin::ObjectKind;
constexpr std::size_t kChunk = ChunkIndex::kChunkBytes;

std::string some_bytes(std::size_t size, unsigned seed) {
  std::string out(size, '\0');
  std::uint64_t state = seed * 0x9E3779B97F4A7C15ull + 1;
  for (std::size_t i = 0; i < size; i += 8) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    std::memcpy(out.data() + i, &state, std::min<std::size_t>(8, size - i));
  }
  return out;
}

// Counts what is read of it and answers after `delay`.
class CountingOrigin final : public origin::Origin {
 public:
  Result<std::unique_ptr<origin::Object>> open(const origin::ObjectName& name, Deadline deadline) override {
    auto object = memory_.open(name, deadline);
    if (!object.ok()) return object;
    return std::unique_ptr<origin::Object>(new Slow(*this, std::move(*object)));
  }
  Result<void> publish(const origin::ObjectName& name, const Content& content, Deadline deadline) override { return memory_.publish(name, content, deadline); }
  Result<origin::ObjectList> list(const std::string& after, std::size_t limit, Deadline deadline) override { return memory_.list(after, limit, deadline); }
  Result<void> remove(const origin::ObjectName& name, Deadline deadline) override { return memory_.remove(name, deadline); }
  std::string description() const override { return "a counting memory"; }

  origin::MemoryOrigin& memory() { return memory_; }
  std::atomic<std::uint64_t> read_bytes{0};
  std::atomic<bool> fails{false};
  Duration delay{};

 private:
  class Slow final : public origin::Object {
   public:
    Slow(CountingOrigin& origin, std::unique_ptr<origin::Object> inner) : origin_(origin), inner_(std::move(inner)) {}
    std::uint64_t size() const override { return inner_->size(); }
    Result<origin::Buffer> read(std::uint64_t offset, std::size_t length, Deadline deadline) const override {
      std::this_thread::sleep_for(origin_.delay);
      if (origin_.fails) return Error(ErrorCode::kUnavailable, "the store is gone");
      origin_.read_bytes += length;
      return inner_->read(offset, length, deadline);
    }

   private:
    CountingOrigin& origin_;
    std::unique_ptr<origin::Object> inner_;
  };
  origin::MemoryOrigin memory_;
};

class BlobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/dsec-stored-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    ASSERT_EQ(::mkdir((folder_ + "/state").c_str(), 0700), 0);
    ASSERT_EQ(::mkdir((folder_ + "/layers").c_str(), 0700), 0);
  }
  void TearDown() override { (void)sys::remove_tree_at(AT_FDCWD, folder_); }

  // Publishes an object and has it served; its hex.
  std::string serve(const std::string& bytes, const std::string& index_of_bytes = {}) {
    const Content content = Content::of_bytes(bytes);
    EXPECT_TRUE(store_.publish({ObjectKind::kData, content.hex()}, content, Deadline::in(std::chrono::seconds(5))).ok());
    const auto index = ChunkIndex::of(Content::of_bytes(index_of_bytes.empty() ? bytes : index_of_bytes));
    EXPECT_TRUE(sys::replace_file(folder_ + "/state/" + content.hex() + ".index", index->bytes(), 0600).ok());
    return content.hex();
  }
  std::unique_ptr<BlobTable> table() {
    return std::make_unique<BlobTable>(StoredFolders{folder_ + "/state", folder_ + "/layers"}, store_, budget_,
                                       origin::ReadPatience{.attempts = 2, .each = std::chrono::seconds(2)});
  }
  // As the server does it, without a kernel.
  Result<std::string> read(BlobTable& blobs, const std::string& hex, std::uint64_t offset, std::size_t length) {
    const auto blob = blobs.find(hex);
    if (!blob.ok()) return blob.error();
    std::mutex mutex;
    std::condition_variable wake;
    std::optional<Result<std::string>> answer;
    const auto runs = (*blob)->read(offset, length, [&](const Result<std::string_view>& bytes) {
      const std::lock_guard lock(mutex);
      answer = bytes.ok() ? Result<std::string>(std::string(*bytes)) : Result<std::string>(bytes.error());
      wake.notify_one();
    });
    for (const ChunkRun& run : runs) {
      const Blob::Fetched fetched = (*blob)->fetch(run, Deadline::in(std::chrono::seconds(5)));
      for (const std::uint64_t chunk : fetched.kept) budget_.added(*blob, chunk);
      if (fetched.whole) blobs.hand_over(*blob);
    }
    std::unique_lock lock(mutex);
    wake.wait(lock, [&] { return answer.has_value(); });
    return *answer;
  }

  std::string folder_;
  CountingOrigin store_;
  CacheBudget budget_{64 << 20};
};

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
