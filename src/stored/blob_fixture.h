// An origin that counts, and what a node has of it: shared by the tests of this folder.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "origin/memory_origin.h"
#include "stored/blob_table.h"
#include "stored/cache_budget.h"
#include "sys/file.h"

namespace dsec::stored {

using origin::ChunkIndex;
using origin::Content;
using origin::ObjectKind;
inline constexpr std::size_t kChunk = ChunkIndex::kChunkBytes;

inline std::string some_bytes(std::size_t size, unsigned seed) {
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
    if (!object.ok() || name.kind != ObjectKind::kData) return object;
    return std::unique_ptr<origin::Object>(new Slow(*this, std::move(*object)));
  }
  Result<void> publish(const origin::ObjectName& name, const Content& content, Deadline deadline) override { return memory_.publish(name, content, deadline); }
  Result<origin::ObjectList> list(const std::string& after, std::size_t limit, Deadline deadline) override { return memory_.list(after, limit, deadline); }
  Result<void> remove(const origin::ObjectName& name, Deadline deadline) override { return memory_.remove(name, deadline); }
  Result<std::vector<origin::Leftover>> leftovers(Deadline deadline) override { return memory_.leftovers(deadline); }
  Result<void> remove_leftover(const origin::Leftover& one, Deadline deadline) override { return memory_.remove_leftover(one, deadline); }
  std::string description() const override { return "a counting memory"; }

  origin::MemoryOrigin& memory() { return memory_; }
  // The first chunk of every read, in order.
  std::vector<std::uint64_t> order() {
    const std::lock_guard lock(mutex_);
    return order_;
  }
  std::atomic<std::uint64_t> read_bytes{0};  // of data objects
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
      {
        const std::lock_guard lock(origin_.mutex_);
        origin_.order_.push_back(offset / kChunk);
      }
      return inner_->read(offset, length, deadline);
    }

   private:
    CountingOrigin& origin_;
    std::unique_ptr<origin::Object> inner_;
  };
  origin::MemoryOrigin memory_;
  std::mutex mutex_;  // guards order_
  std::vector<std::uint64_t> order_;
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

}  // namespace dsec::stored
