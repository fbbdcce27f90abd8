// Traces as they come from other nodes, or from whoever can write to a store.
#include "origin/access_trace.h"

#include <gtest/gtest.h>

#include <cstring>

namespace dsec::origin {
namespace {

constexpr std::uint64_t kChunk = ChunkIndex::kChunkBytes;
constexpr std::uint64_t kObject = 2 * kChunk + 5000;  // the last chunk has two pages

AccessTrace some_trace() { return AccessTrace(kObject, {{.chunk = 2, .at_ms = 0, .pages = 3}, {.chunk = 0, .at_ms = 7, .pages = 1ull << 63}}); }

TEST(AccessTraceTest, ComesBackFromItsBytesAndFromNoPartOfThem) {
  const std::string bytes = some_trace().bytes();

  const auto parsed = AccessTrace::parse(bytes, kObject);

  ASSERT_TRUE(parsed.ok()) << parsed.error().message();
  EXPECT_EQ(parsed->touches(), some_trace().touches());
  for (std::size_t length = 0; length < bytes.size(); ++length) EXPECT_EQ(AccessTrace::parse(bytes.substr(0, length), kObject).error().code(), ErrorCode::kDataFault) << length;
  EXPECT_FALSE(AccessTrace::parse(bytes + "x", kObject).ok());
}

TEST(AccessTraceTest, RefusesWhatTheObjectCannotHave) {
  const auto refused = [](std::vector<Touch> touches) { return !AccessTrace::parse(AccessTrace(kObject, std::move(touches)).bytes(), kObject).ok(); };

  EXPECT_TRUE(refused({{.chunk = 3, .at_ms = 0, .pages = 1}})) << "a chunk behind the end";
  EXPECT_TRUE(refused({{.chunk = 0xffffffff, .at_ms = 0, .pages = 1}}));
  EXPECT_TRUE(refused({{.chunk = 2, .at_ms = 0, .pages = 4}})) << "a page behind the end";
  EXPECT_TRUE(refused({{.chunk = 1, .at_ms = 0, .pages = 0}})) << "nothing of a chunk";
  EXPECT_TRUE(refused({{.chunk = 1, .at_ms = 0, .pages = 1}, {.chunk = 1, .at_ms = 1, .pages = 2}})) << "a chunk twice";
  EXPECT_TRUE(refused({{.chunk = 1, .at_ms = 2, .pages = 1}, {.chunk = 0, .at_ms = 1, .pages = 1}})) << "back in time";
  EXPECT_FALSE(AccessTrace::parse(some_trace().bytes(), kObject + 1).ok()) << "another object's";
  EXPECT_TRUE(AccessTrace::parse(AccessTrace(0, {}).bytes(), 0).ok());
}

TEST(AccessTraceTest, ALengthThatLiesIsNotAllocated) {
  std::string bytes = some_trace().bytes();
  const std::uint32_t many = 0xffffffff;
  std::memcpy(bytes.data() + 12, &many, sizeof many);

  EXPECT_EQ(AccessTrace::parse(bytes, kObject).error().code(), ErrorCode::kDataFault);
}

TEST(PagesOfTest, AreThoseThatARangeHasBytesOf) {
  EXPECT_EQ(pages_of(0, 0, kChunk), ~0ull);
  EXPECT_EQ(pages_of(1, kChunk - 1, 2), 1u);
  EXPECT_EQ(pages_of(0, kChunk - 1, 2), 1ull << 63);
  EXPECT_EQ(pages_of(0, 4095, 2), 3u);
  EXPECT_EQ(pages_of(3, 0, kChunk), 0u);
  EXPECT_EQ(pages_of(0, 10, 0), 0u);
}

}  // namespace
}  // namespace dsec::origin
