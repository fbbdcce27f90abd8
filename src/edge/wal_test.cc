#include "edge/wal.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <set>

#include "edge/wal_records.h"

namespace dsec::edge {
namespace {

namespace fs = std::filesystem;

class WalTest : public ::testing::Test {
 protected:
  WalTest() {
    char name[] = "/tmp/dsec-wal-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~WalTest() override { fs::remove_all(directory_); }

  Result<std::unique_ptr<Wal>> open(std::uint64_t segment_bytes = 16 << 20) {
    seen_.clear();
    return Wal::open({.directory = directory_, .segment_bytes = segment_bytes},
                     [this](std::uint8_t type, std::string_view body) -> Result<void> {
                       seen_.push_back(std::to_string(type) + ":" + std::string(body));
                       return {};
                     });
  }
  static void commit(Wal& wal, std::uint64_t position) {
    std::promise<void> done;
    wal.commit(position, [&](Result<void> outcome) {
      EXPECT_TRUE(outcome.ok());
      done.set_value();
    });
    done.get_future().wait();
  }
  std::string segment(int sequence) const {
    char name[32];
    snprintf(name, sizeof name, "/%016d.log", sequence);
    return directory_ + name;
  }
  static std::string slurp(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void spill(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  std::string directory_;
  std::vector<std::string> seen_;
};

TEST_F(WalTest, ShowsWhatWasAppendedAfterAReopen) {
  {
    auto wal = open();
    ASSERT_TRUE(wal.ok());
    ASSERT_TRUE((*wal)->append(1, "one").ok());
    ASSERT_TRUE((*wal)->append(2, "").ok());
  }

  ASSERT_TRUE(open().ok());

  EXPECT_EQ(seen_, (std::vector<std::string>{"1:one", "2:"}));
}

// The prefix property: a log cut at any byte shows the records before the cut, whole.
TEST_F(WalTest, CutAtAnyByteShowsAPrefix) {
  std::vector<std::string> all;
  {
    auto wal = open();
    ASSERT_TRUE(wal.ok());
    for (int i = 0; i < 8; ++i) {
      const std::string body(static_cast<std::size_t>(i * 7), static_cast<char>('a' + i));
      ASSERT_TRUE((*wal)->append(static_cast<std::uint8_t>(i + 1), body).ok());
      all.push_back(std::to_string(i + 1) + ":" + body);
    }
  }
  const std::string whole = slurp(segment(1));

  std::size_t most = 0;
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    fs::remove_all(directory_);
    fs::create_directory(directory_);
    spill(segment(1), whole.substr(0, cut));

    const auto reopened = open();

    ASSERT_TRUE(reopened.ok()) << "cut at " << cut << ": " << reopened.error().message();
    ASSERT_LE(seen_.size(), all.size());
    for (std::size_t i = 0; i < seen_.size(); ++i) EXPECT_EQ(seen_[i], all[i]);
    EXPECT_GE(seen_.size(), most);
    most = seen_.size();
  }
  EXPECT_EQ(most, all.size());
}

TEST_F(WalTest, RefusesDamageBeforeTheStableMark) {
  {
    auto wal = open();
    ASSERT_TRUE(wal.ok());
    ASSERT_TRUE((*wal)->append(1, "first").ok());
    commit(**wal, *(*wal)->append(1, "second"));
    ASSERT_TRUE((*wal)->append(1, "third").ok());
  }
  std::string bytes = slurp(segment(1));
  bytes[32 + 22] ^= 1;
  spill(segment(1), bytes);

  const auto reopened = open();

  ASSERT_FALSE(reopened.ok());
  EXPECT_EQ(reopened.error().code(), ErrorCode::kDataFault);
  EXPECT_NE(reopened.error().message().find("damaged at byte 32"), std::string::npos) << reopened.error().message();
  EXPECT_EQ(slurp(segment(1)), bytes);
}

TEST(WalRecordsTest, AnEventComesBackWhole) {
  const EventRecord event{.id = "box", .sequence = 1ULL << 40, .at_ms = 7, .type = "paused", .detail = "user, in 0.7 ms"};

  const Result<EventRecord> read = decode_record<EventRecord>(encode(event));

  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->id, "box");
  EXPECT_EQ(read->sequence, 1ULL << 40);
  EXPECT_EQ(read->at_ms, 7);
  EXPECT_EQ(read->type, "paused");
  EXPECT_EQ(read->detail, "user, in 0.7 ms");
}

TEST_F(WalTest, RefusesANewerFormat) {
  { ASSERT_TRUE(open().ok()); }
  std::string bytes = slurp(segment(1));
  bytes[8] = 9;
  spill(segment(1), bytes);

  const auto reopened = open();

  ASSERT_FALSE(reopened.ok());
  EXPECT_EQ(reopened.error().code(), ErrorCode::kUnsupported);
}

TEST_F(WalTest, CommitsManyWaitersAndSealsSegments) {
  auto wal = open(4096);
  ASSERT_TRUE(wal.ok());
  int done = 0;
  std::promise<void> all;

  for (int i = 0; i < 200; ++i) {
    const auto position = (*wal)->append(3, std::string(100, 'x'));
    ASSERT_TRUE(position.ok());
    (*wal)->commit(*position, [&](Result<void> outcome) {
      EXPECT_TRUE(outcome.ok());
      if (++done == 200) all.set_value();
    });
  }

  all.get_future().wait();
  EXPECT_TRUE(fs::exists(segment(5)));
  wal->reset();
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(seen_.size(), 200u);
}

class KeepEven final : public Wal::Filter {
 public:
  void note(std::uint8_t, std::string_view) override { ++noted; }
  bool keep(std::uint8_t type, std::string_view) override { return type % 2 == 0; }
  int noted = 0;
};

TEST_F(WalTest, CompactionKeepsWhatTheFilterKeepsAndTheOrder) {
  {
    auto wal = open(1024);
    ASSERT_TRUE(wal.ok());
    for (int i = 0; i < 100; ++i)
      ASSERT_TRUE((*wal)->append(static_cast<std::uint8_t>(1 + i % 2), std::to_string(i) + std::string(50, '.')).ok());
    ASSERT_TRUE((*wal)->wants_compaction());
    KeepEven filter;

    ASSERT_TRUE((*wal)->compact(filter).ok());

    EXPECT_GT(filter.noted, 50);
    EXPECT_FALSE((*wal)->wants_compaction());
    ASSERT_TRUE((*wal)->append(2, "after").ok());
  }

  ASSERT_TRUE(open(1024).ok());

  std::vector<std::string> even;
  for (const std::string& record : seen_)
    if (record[0] == '2') even.push_back(record);
  EXPECT_EQ(even.size(), 51u);
  EXPECT_TRUE(even.front().starts_with("2:1."));
  EXPECT_EQ(even.back(), "2:after");
  EXPECT_LT(seen_.size(), 80u);
}

// A crash between the rename of the base and the removal of what it replaces.
TEST_F(WalTest, ABaseVoidsOlderSegmentsThatACrashLeft) {
  {
    auto wal = open(1024);
    ASSERT_TRUE(wal.ok());
    for (int i = 0; i < 60; ++i) ASSERT_TRUE((*wal)->append(2, std::to_string(i) + std::string(60, '.')).ok());
    const std::string first = slurp(segment(1));
    KeepEven filter;
    ASSERT_TRUE((*wal)->compact(filter).ok());
    ASSERT_FALSE(fs::exists(segment(1)));
    spill(segment(1), first);
  }

  ASSERT_TRUE(open(1024).ok());

  EXPECT_EQ(seen_.size(), 60u);
  EXPECT_EQ(std::set<std::string>(seen_.begin(), seen_.end()).size(), 60u);
  EXPECT_FALSE(fs::exists(segment(1)));
}

TEST(WalRecordTest, CarriesAPauseAndItsEnd) {
  const PausedRecord paused{"box", {.at_ms = 5, .reason = "idle", .wake = model::Wake::kHolder, .fence = 1ULL << 63, .left_ms = 0, .reclaimed_bytes = 3, .swapped_bytes = 2}};
  const HeldRecord held{.id = "hold-1", .project = "p", .selector = "job=a", .reason = "step", .wake = model::Wake::kHolder, .fence = 4, .at_ms = 6};

  const Result<PausedRecord> read = decode_record<PausedRecord>(encode(paused));
  const Result<ResumedRecord> resumed = decode_record<ResumedRecord>(encode(ResumedRecord{"box", 7, 8}));
  const Result<HeldRecord> hold = decode_record<HeldRecord>(encode(held));

  ASSERT_TRUE(read.ok() && resumed.ok() && hold.ok());
  EXPECT_EQ(read->id, "box");
  EXPECT_EQ(read->pause.reason, "idle");
  EXPECT_EQ(read->pause.wake, model::Wake::kHolder);
  EXPECT_EQ(read->pause.fence, 1ULL << 63);
  EXPECT_EQ(read->pause.left_ms, 0);
  EXPECT_EQ(read->pause.reclaimed_bytes, 3);
  EXPECT_EQ(read->pause.swapped_bytes, 2);
  EXPECT_EQ(resumed->expires_at_ms, 8);
  EXPECT_EQ(hold->selector, "job=a");
  EXPECT_EQ(hold->fence, 4u);
  EXPECT_EQ(sandbox_of(encode(held)).value(), "hold-1");
  EXPECT_EQ(decode_record<FencedRecord>(encode(FencedRecord{"box", 9})).value().fence, 9u);
  EXPECT_EQ(decode_record<HoldEndedRecord>(encode(HoldEndedRecord{"hold-1"})).value().id, "hold-1");
}

TEST(WalRecordTest, RefusesAPauseThatIsNone) {
  EXPECT_FALSE(decode_record<PausedRecord>("\x22\x06nobody").ok());
  EXPECT_FALSE(decode_record<ResumedRecord>("\xff").ok());
}

// A patch of an earlier version says nothing of what is left.
TEST(WalRecordTest, ReadsAPatchWithoutWhatIsLeft) {
  PatchedRecord record{.id = "box", .spec = {}, .expires_at_ms = 5};
  record.spec.image = "tiny:1";

  const Result<PatchedRecord> read = decode_record<PatchedRecord>(encode(record));

  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->left_ms, -1);
}

}  // namespace
}  // namespace dsec::edge
