#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/errno_text.h"
#include "base/result.h"

namespace dsec {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return invalid_argument("odd");
  return n / 2;
}

Result<int> quarter(int n) {
  DSEC_ASSIGN(const int h, half(n).within("first half"));
  DSEC_ASSIGN(const int q, half(h));
  return q;
}

Result<void> even(int n) {
  DSEC_TRY(half(n));
  return {};
}

TEST(ResultTest, PassesValuesAndErrorsOn) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(6).error().message(), "odd");
  EXPECT_EQ(quarter(5).error().message(), "first half: odd");
  EXPECT_TRUE(even(2).ok());
  EXPECT_EQ(even(1).error().code(), ErrorCode::kInvalidArgument);
}

TEST(ErrorTest, EveryCodeHasTraits) {
  for (int code = 1; code <= static_cast<int>(ErrorCode::kDeadlineExceeded); code++) {
    const ErrorTraits& t = traits(static_cast<ErrorCode>(code));
    EXPECT_FALSE(t.name.empty());
    EXPECT_GE(t.http_status, 400);
    EXPECT_EQ(t.retryable, t.retry != "never" && t.retry != "new_key" && t.name != "cancelled") << t.name;
  }
}

TEST(ErrorTest, ErrnoChoosesTheCode) {
  const Error error = errno_error("open /x", ENOENT);
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_EQ(error.error_number(), ENOENT);
  EXPECT_EQ(error.message(), "open /x: No such file or directory");
}

TEST(ErrorTest, SaysAnErrnoThatNobodyKnowsByItsNumber) {
  EXPECT_EQ(errno_text(EACCES), "Permission denied");
  EXPECT_EQ(errno_text(99999), "unknown error 99999");
}

TEST(DeadlineTest, IsPassedAtItsInstantAndNeverNegative) {
  const Deadline past = Deadline::at(std::chrono::steady_clock::now() - std::chrono::seconds(1));
  EXPECT_TRUE(past.passed());
  EXPECT_EQ(past.left_ms(), 0);
  EXPECT_GT(Deadline::in(std::chrono::hours(1)).left_ms(), 3'500'000);
}

}  // namespace
}  // namespace dsec
