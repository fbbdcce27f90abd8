// The two ports of base, on both of their adapters.
#include <gtest/gtest.h>

#include <memory>

#include "base/clock.h"
#include "base/random.h"

namespace dsec::contract {
namespace {

template <typename T>
class ClockContract : public ::testing::Test {
 protected:
  T clock_;
};
using Clocks = ::testing::Types<SystemClock, ManualClock>;
TYPED_TEST_SUITE(ClockContract, Clocks);

TYPED_TEST(ClockContract, NeverGoesBack) {
  Instant last = this->clock_.now();
  for (int i = 0; i < 1000; ++i) {
    const Instant now = this->clock_.now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TYPED_TEST(ClockContract, HasAWallTimeAfter2020) {
  EXPECT_GT(this->clock_.wall_now().time_since_epoch(), std::chrono::hours(24 * 365 * 50));
}

template <typename T>
std::unique_ptr<Random> make_random();
template <>
std::unique_ptr<Random> make_random<SystemRandom>() {
  return std::make_unique<SystemRandom>();
}
template <>
std::unique_ptr<Random> make_random<SeededRandom>() {
  return std::make_unique<SeededRandom>(7);
}
template <typename T>
class RandomContract : public ::testing::Test {
 protected:
  std::unique_ptr<Random> random_ = make_random<T>();
};
using Randoms = ::testing::Types<SystemRandom, SeededRandom>;
TYPED_TEST_SUITE(RandomContract, Randoms);

TYPED_TEST(RandomContract, FillsExactlyWhatWasAskedFor) {
  for (std::size_t size : {0u, 1u, 7u, 32u, 1000u, 100000u}) EXPECT_EQ(this->random_->bytes(size).size(), size);
}

TYPED_TEST(RandomContract, DoesNotRepeatItself) {
  EXPECT_NE(this->random_->bytes(32), this->random_->bytes(32));
  EXPECT_NE(this->random_->next(), this->random_->next());
}

TYPED_TEST(RandomContract, UsesEveryByteValue) {
  const std::string bytes = this->random_->bytes(1 << 16);
  bool seen[256] = {};
  for (char c : bytes) seen[static_cast<unsigned char>(c)] = true;
  for (bool value : seen) EXPECT_TRUE(value);
}

TEST(SeededRandomTest, IsTheSameForTheSameSeed) { EXPECT_EQ(SeededRandom(5).bytes(64), SeededRandom(5).bytes(64)); }

}  // namespace
}  // namespace dsec::contract
