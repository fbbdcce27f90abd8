#include "image/garbage.h"

#include <gtest/gtest.h>

#include <random>

namespace dsec::image {
namespace {

using std::chrono::milliseconds;

constexpr GarbagePolicy kPolicy{.condemn_after = milliseconds(100), .delete_after = milliseconds(10)};

TEST(GarbageTest, TakesThreeLooksFromTheLastUseToTheEnd) {
  const GarbageVerdict unused = judge(false, std::nullopt, kPolicy, 1000);
  EXPECT_EQ(unused.fate, Fate::kUnused);
  EXPECT_EQ(unused.next_ms, 1100);
  EXPECT_EQ(judge(false, unused.disuse, kPolicy, 1099).fate, Fate::kUnused);
  const GarbageVerdict condemned = judge(false, unused.disuse, kPolicy, 1500);
  EXPECT_EQ(condemned.fate, Fate::kCondemned);
  EXPECT_EQ(condemned.next_ms, 1510) << "counted from the look that condemned it";
  EXPECT_EQ(judge(false, condemned.disuse, kPolicy, 1509).fate, Fate::kCondemned);
  EXPECT_EQ(judge(false, condemned.disuse, kPolicy, 1510).fate, Fate::kDue);
}

TEST(GarbageTest, AnyUseForgivesAll) {
  for (const Disuse& before : {Disuse{1, 0}, Disuse{1, 2}}) {
    const GarbageVerdict held = judge(true, before, kPolicy, 5000);
    EXPECT_EQ(held.fate, Fate::kHeld);
    EXPECT_FALSE(held.disuse);
  }
}

TEST(GarbageTest, NoWaitAtAllStillTakesTwoLooks) {
  constexpr GarbagePolicy at_once{.condemn_after = milliseconds(0), .delete_after = milliseconds(0)};
  const GarbageVerdict first = judge(false, std::nullopt, at_once, 7);
  EXPECT_EQ(first.fate, Fate::kCondemned);
  EXPECT_EQ(judge(false, first.disuse, at_once, 7).fate, Fate::kDue);
}

TEST(GarbageTest, AClockThatWasPutBackOnlyDelays) {
  const GarbageVerdict verdict = judge(false, Disuse{.since_ms = 9000, .condemned_ms = 9500}, kPolicy, 1000);
  EXPECT_EQ(verdict.fate, Fate::kCondemned);
  EXPECT_EQ(verdict.next_ms, 1010);
}

// However looks, uses and the clock fall, nothing is due that was held within the time that it takes.
TEST(GarbageTest, NothingIsDueSoonAfterItsLastUse) {
  std::mt19937 random(20);
  for (int round = 0; round < 2000; round++) {
    std::optional<Disuse> disuse;
    std::int64_t now = 1000, last_held = 1000;
    for (int look = 0; look < 30; look++) {
      now += static_cast<std::int64_t>(random() % 60);
      const bool held = random() % 8 == 0;
      if (held) last_held = now;
      const GarbageVerdict verdict = judge(held, disuse, kPolicy, now);
      disuse = verdict.disuse;
      if (verdict.fate != Fate::kDue) continue;
      EXPECT_GE(now - last_held, 110);
    }
  }
}

}  // namespace
}  // namespace dsec::image
