// What one node records of its reads, and what another one makes of it.
#include "stored/prefetcher.h"

#include <algorithm>
#include <fstream>

#include "stored/blob_fixture.h"
#include "stored/prefetch_verdict.h"
#include "sys/node_memory.h"

namespace dsec::stored {
namespace {

using origin::AccessTrace;
using origin::Touch;
constexpr auto kHour = std::chrono::hours(1);

TEST(FirstTouchesTest, KeepsTheOrderOfFirstReadsAndAllPagesOfTheWindow) {
  FirstTouches touches(4 * kChunk, std::chrono::seconds(10));
  const Instant begin{};

  EXPECT_TRUE(touches.touch(2 * kChunk, 4096, begin));
  EXPECT_FALSE(touches.touch(kChunk - 4096, 8192, begin + std::chrono::milliseconds(5)));
  touches.touch(2 * kChunk, 8192, begin + std::chrono::seconds(1));
  EXPECT_FALSE(touches.take_trace(begin + std::chrono::seconds(9)).has_value()) << "not over yet";
  touches.touch(3 * kChunk, 4096, begin + std::chrono::seconds(10));

  const auto trace = touches.take_trace(begin + std::chrono::seconds(10));
  ASSERT_TRUE(trace.has_value());
  EXPECT_EQ(trace->touches(), (std::vector<Touch>{{2, 0, 3}, {0, 5, 1ull << 63}, {1, 5, 1}}));
  EXPECT_EQ(touches.touched_bytes(), 5u * 4096);
  EXPECT_FALSE(touches.take_trace(begin + kHour).has_value()) << "once";
}

TEST(PressureTest, IsReadFromTheKernelsLines) {
  const std::string text = "some avg10=1.50 avg60=2.25 avg300=3.00 total=4\nfull avg10=0.10 avg60=41.00 avg300=0.00 total=9\n";

  EXPECT_EQ(sys::pressure_of(text, "some", "avg10"), 1.5);
  EXPECT_EQ(sys::pressure_of(text, "full", "avg60"), 41);
  EXPECT_EQ(sys::pressure_of(text, "none", "avg60"), 0);
  EXPECT_EQ(sys::pressure_of("some avg10", "some", "avg10"), 0);
}

class PrefetcherTest : public BlobTest {
 protected:
  void SetUp() override {
    BlobTest::SetUp();
    ASSERT_EQ(::mkdir((folder_ + "/pressure").c_str(), 0700), 0);
  }
  std::unique_ptr<BlobTable> recording_table(Duration window) {
    return std::make_unique<BlobTable>(StoredFolders{folder_ + "/state", folder_ + "/layers"}, store_, budget_, origin::ReadPatience{.attempts = 1}, window);
  }
  std::unique_ptr<Prefetcher> prefetcher(CacheBudget& budget, PrefetchLimits limits = {}) {
    limits.pressure_folder = folder_ + "/pressure";
    return std::make_unique<Prefetcher>(limits, Prefetcher::Node{.origin = store_,
                                                                .budget = budget,
                                                                .state = folder_ + "/state",
                                                                .fetch =
                                                                    [&budget](const std::shared_ptr<Blob>& blob, ChunkRun run) {
                                                                      const auto fetched = blob->fetch(run, Deadline::in(std::chrono::seconds(5)), FetchFor::kLater);
                                                                      for (const std::uint64_t chunk : fetched.kept) budget.added(blob, chunk, FetchFor::kLater);
                                                                    },
                                                                .demand_is_busy = [this] { return busy_.load(); }});
  }
  void put_trace(const std::string& hex, const std::string& bytes) { store_.memory().replace({ObjectKind::kTrace, hex}, bytes); }
  void put_trace(const std::string& hex, std::uint64_t object, const std::vector<std::uint32_t>& chunks) {
    std::vector<Touch> touches;
    for (const std::uint32_t chunk : chunks) touches.push_back({.chunk = chunk, .pages = 1});
    put_trace(hex, AccessTrace(object, touches).bytes());
  }
  static bool comes_true(const std::function<bool()>& what) {
    const Deadline deadline = Deadline::in(std::chrono::seconds(20));
    while (!what() && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return what();
  }
  static bool prefetched(const Blob& blob, std::uint64_t chunks) {
    return comes_true([&] { return blob.counts().prefetched_bytes == chunks * kChunk; });
  }
  // Long enough for whoever would go on to go on.
  static void let_it_run() { std::this_thread::sleep_for(std::chrono::milliseconds(200)); }

  std::atomic<bool> busy_{false};
};

TEST_F(PrefetcherTest, WhatWasReadFirstIsInTheStoreWhenTheWindowIsOver) {
  const std::string bytes = some_bytes(6 * kChunk, 1);
  const std::string hex = serve(bytes);
  const PrefetchLimits limits{.window = std::chrono::milliseconds(50)};
  const auto blobs = recording_table(limits.window);
  const auto ahead = prefetcher(budget_, limits);
  ASSERT_TRUE(read(*blobs, hex, 4 * kChunk, 4096).ok());
  ASSERT_TRUE(read(*blobs, hex, kChunk, 4096).ok());
  const auto blob = blobs->find(hex).value();
  ASSERT_TRUE(blob->take_first_read());
  ahead->begin(blob);

  Result<std::string> found = Error(ErrorCode::kNotFound, "");
  EXPECT_TRUE(comes_true([&] {
    ahead->look_around(std::chrono::steady_clock::now());
    found = origin::read_whole(store_, {ObjectKind::kTrace, hex}, AccessTrace::kMaxBytes, Deadline::in(std::chrono::seconds(1)));
    return found.ok();
  }));

  const auto trace = AccessTrace::parse(*found, bytes.size());
  ASSERT_TRUE(trace.ok()) << trace.error().message();
  ASSERT_EQ(trace->touches().size(), 2u);
  EXPECT_EQ(trace->touches()[0].chunk, 4u);
  EXPECT_EQ(trace->touches()[1].chunk, 1u);
}

TEST_F(PrefetcherTest, ChunksOfATraceComeInItsOrderAndReadersWaitForNone) {
  const std::string bytes = some_bytes(20 * kChunk, 2);
  const std::string hex = serve(bytes);
  put_trace(hex, bytes.size(), {9, 3, 4, 5, 17, 0});
  const auto blobs = recording_table(kHour);
  const auto blob = blobs->find(hex).value();
  const auto ahead = prefetcher(budget_, {.threads = 1});

  ahead->begin(blob);
  ASSERT_TRUE(prefetched(*blob, 6));

  EXPECT_EQ(store_.order(), (std::vector<std::uint64_t>{9, 3, 17, 0})) << "neighbours by one read";
  EXPECT_TRUE(blob->read(4 * kChunk, 4096, [](const auto&) {}).empty());
  EXPECT_EQ(read(*blobs, hex, 9 * kChunk, 4096).value(), bytes.substr(9 * kChunk, 4096));
  EXPECT_EQ(blob->counts().useful_bytes, 2 * kChunk);
  EXPECT_EQ(blob->counts().demand_misses, 0u);
  EXPECT_FALSE(blob->take_trace(std::chrono::steady_clock::now() + 2 * kHour).has_value()) << "the store has one";
}

TEST_F(PrefetcherTest, NothingThatReadersBroughtGoesForWhatIsFetchedForLater) {
  const std::string bytes = some_bytes(40 * kChunk, 3);
  const std::string hex = serve(bytes);
  CacheBudget budget(10 * kChunk);
  BlobTable blobs({folder_ + "/state", ""}, store_, budget, {});
  const auto blob = blobs.find(hex).value();
  const auto read_one = [&](std::uint64_t chunk) {
    for (const ChunkRun& run : blob->read(chunk * kChunk, 4096, [](const auto&) {}))
      for (const std::uint64_t kept : blob->fetch(run, Deadline::in(std::chrono::seconds(5))).kept) budget.added(blob, kept);
  };
  for (std::uint64_t chunk = 0; chunk < 6; ++chunk) read_one(chunk);
  std::vector<std::uint32_t> trace(20);
  for (std::uint32_t i = 0; i < 20; ++i) trace[i] = 10 + i;
  put_trace(hex, bytes.size(), trace);
  const auto ahead = prefetcher(budget, {.threads = 1});

  ahead->begin(blob);
  ASSERT_TRUE(prefetched(*blob, 4)) << "one run fits, the next does not";
  let_it_run();
  EXPECT_EQ(blob->counts().prefetched_bytes, 4 * kChunk);
  for (std::uint64_t chunk = 30; chunk < 34; ++chunk) read_one(chunk);

  const std::uint64_t fetched = blob->counts().fetched_bytes;
  for (std::uint64_t chunk = 0; chunk < 6; ++chunk) read_one(chunk);
  EXPECT_EQ(blob->counts().fetched_bytes, fetched) << "all six are still there: what was for later went instead";
  EXPECT_LE(budget.used_bytes(), 10 * kChunk);
}

TEST_F(PrefetcherTest, AWrongTraceStopsItselfAndIsNotFollowedAgain) {
  const std::string bytes = some_bytes(60 * kChunk, 4);
  const std::string hex = serve(bytes);
  std::vector<std::uint32_t> trace(60);
  for (std::uint32_t i = 0; i < 60; ++i) trace[i] = 59 - i;
  put_trace(hex, bytes.size(), trace);
  const auto blobs = recording_table(kHour);
  const auto blob = blobs->find(hex).value();
  const auto ahead = prefetcher(budget_, {.threads = 1, .lead_bytes = 20 * kChunk});

  ahead->begin(blob);
  ASSERT_TRUE(prefetched(*blob, 20));
  let_it_run();
  EXPECT_EQ(blob->counts().prefetched_bytes, 20 * kChunk) << "nobody reads it";
  ahead->look_around(std::chrono::steady_clock::now() + 2 * kHour);

  EXPECT_TRUE(comes_true([&] { return prefetch_is_off(folder_ + "/state", hex); }));
  const auto next = recording_table(kHour);
  const auto again = next->find(hex).value();
  ahead->begin(again);
  let_it_run();
  EXPECT_EQ(again->counts().prefetched_bytes, 0u);
}

TEST_F(PrefetcherTest, ATraceThatIsNoneIsNotFollowed) {
  const std::string bytes = some_bytes(4 * kChunk, 5);
  const std::string hex = serve(bytes);
  for (const std::string& wrong : {std::string("DSECTRC1"), std::string(AccessTrace::kMaxBytes + 1, 'x'), AccessTrace(bytes.size(), {{.chunk = 4, .pages = 1}}).bytes()}) {
    put_trace(hex, wrong);
    const auto blobs = recording_table(kHour);
    const auto blob = blobs->find(hex).value();
    const auto ahead = prefetcher(budget_);

    ahead->begin(blob);
    let_it_run();

    EXPECT_EQ(blob->counts().prefetched_bytes, 0u);
    EXPECT_TRUE(read(*blobs, hex, 0, 4096).ok());
  }
}

TEST_F(PrefetcherTest, WaitsWhileReadersNeedTheStoreOrTheNodeItsMemory) {
  const std::string bytes = some_bytes(8 * kChunk, 6);
  const std::string hex = serve(bytes);
  put_trace(hex, bytes.size(), {1, 2, 3});
  const auto blobs = recording_table(kHour);
  const auto blob = blobs->find(hex).value();
  busy_ = true;
  std::ofstream(folder_ + "/pressure/memory") << "some avg10=50.00 avg60=0.00 avg300=0.00 total=0\n";
  const auto ahead = prefetcher(budget_);

  ahead->begin(blob);
  let_it_run();
  EXPECT_EQ(blob->counts().prefetched_bytes, 0u) << "readers";
  busy_ = false;
  let_it_run();
  EXPECT_EQ(blob->counts().prefetched_bytes, 0u) << "memory";
  std::ofstream(folder_ + "/pressure/memory") << "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";

  EXPECT_TRUE(prefetched(*blob, 3));
}

TEST_F(PrefetcherTest, AReaderWhoCameForWhatCouldNotBePrefetchedGetsAFetchOfItsOwn) {
  const std::string bytes = some_bytes(4 * kChunk, 7);
  const std::string hex = serve(bytes);
  const auto blobs = recording_table(kHour);
  const auto blob = blobs->find(hex).value();
  ASSERT_EQ(blob->claim({1, 2}).size(), 1u);
  std::optional<Result<std::string>> answer;
  EXPECT_TRUE(blob->read(kChunk, 4096, [&](const Result<std::string_view>& got) { answer = got.ok() ? Result<std::string>(std::string(*got)) : Result<std::string>(got.error()); }).empty());

  store_.fails = true;
  const auto failed = blob->fetch({1, 2}, Deadline::in(std::chrono::seconds(5)), FetchFor::kLater);
  ASSERT_EQ(failed.still_wanted.size(), 1u);
  EXPECT_FALSE(answer.has_value()) << "no error for what it did not ask to be tried like this";
  EXPECT_EQ(blob->claim({2, 1}).size(), 1u) << "of the other chunk nothing is left";
  store_.fails = false;
  (void)blob->fetch(failed.still_wanted.front(), Deadline::in(std::chrono::seconds(5)));

  ASSERT_TRUE(answer.has_value() && answer->ok());
  EXPECT_EQ(**answer, bytes.substr(kChunk, 4096));
  EXPECT_EQ(blob->counts().useful_bytes, 0u);
  EXPECT_EQ(blob->counts().demand_misses, 1u);
}

}  // namespace
}  // namespace dsec::stored
