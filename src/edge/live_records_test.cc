#include "edge/live_records.h"

#include <gtest/gtest.h>

#include <vector>

#include "edge/wal_records.h"

namespace dsec::edge {
namespace {

class LiveRecordsTest : public ::testing::Test {
 protected:
  template <typename Record>
  void add(WalType type, const Record& record) {
    log_.emplace_back(static_cast<std::uint8_t>(type), encode(record));
  }
  // The positions of what a compaction keeps.
  std::vector<std::size_t> kept() const {
    LiveRecords records(0, 0);
    for (const auto& [type, body] : log_) records.note(type, body);
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < log_.size(); ++i)
      if (records.keep(log_[i].first, log_[i].second)) out.push_back(i);
    return out;
  }

  std::vector<std::pair<std::uint8_t, std::string>> log_;
};

TEST_F(LiveRecordsTest, OfPausesAndResumesTheLastOneIsKeptForEachSandbox) {
  add(WalType::kStarted, StartedRecord{"a", 1, 9});
  add(WalType::kPaused, PausedRecord{"a", {}});
  add(WalType::kPaused, PausedRecord{"b", {}});
  add(WalType::kResumed, ResumedRecord{"a", 2, 9});
  add(WalType::kResumed, ResumedRecord{"b", 2, 9});
  add(WalType::kPaused, PausedRecord{"a", {}});

  EXPECT_EQ(kept(), (std::vector<std::size_t>{0, 4, 5}));
}

TEST_F(LiveRecordsTest, OfFencesTheLastOneIsKeptBesideAPause) {
  add(WalType::kFenced, FencedRecord{"a", 1});
  add(WalType::kPaused, PausedRecord{"a", {}});
  add(WalType::kFenced, FencedRecord{"a", 2});

  EXPECT_EQ(kept(), (std::vector<std::size_t>{1, 2}));
}

TEST_F(LiveRecordsTest, OfEventsTheNewestOfEachSandboxAreKept) {
  add(WalType::kEvent, EventRecord{.id = "quiet", .sequence = 1, .at_ms = 1, .type = "accepted", .detail = {}});
  for (std::uint64_t i = 0; i < 300; ++i) add(WalType::kEvent, EventRecord{.id = "busy", .sequence = i + 2, .at_ms = 1, .type = "patched", .detail = {}});

  const std::vector<std::size_t> left = kept();

  ASSERT_EQ(left.size(), 257u);
  EXPECT_EQ(left[0], 0u);
  EXPECT_EQ(left[1], 45u);
  EXPECT_EQ(left.back(), 300u);
}

TEST_F(LiveRecordsTest, AHoldThatEndedGoesAndOneThatWasMadeAgainStays) {
  add(WalType::kHeld, HeldRecord{.id = "hold-1", .project = {}, .selector = {}, .reason = {}});
  add(WalType::kHoldEnded, HoldEndedRecord{"hold-1"});
  add(WalType::kHeld, HeldRecord{.id = "hold-2", .project = {}, .selector = {}, .reason = {}});
  add(WalType::kHoldEnded, HoldEndedRecord{"hold-2"});
  add(WalType::kHeld, HeldRecord{.id = "hold-2", .project = {}, .selector = {}, .reason = {}});

  EXPECT_EQ(kept(), (std::vector<std::size_t>{4}));
}

TEST_F(LiveRecordsTest, NothingOfAForgottenSandboxIsKept) {
  add(WalType::kPaused, PausedRecord{"a", {}});
  add(WalType::kFenced, FencedRecord{"a", 2});
  add(WalType::kForgotten, ForgottenRecord{.id = "a"});

  EXPECT_TRUE(kept().empty());
}

}  // namespace
}  // namespace dsec::edge
