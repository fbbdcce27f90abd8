#include "edge/brake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace dsec::edge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = BrakeAction::Kind;
using Step = Brake::Step;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kReserve = 1000 * kMiB;

sys::NodeMemory node(std::uint64_t available_mib, double stalled = 0) {
  return {.total_bytes = 16'000 * kMiB, .available_bytes = available_mib * kMiB, .free_swap_bytes = 0, .stalled_percent = stalled};
}

BrakeSandbox sandbox(std::string id, bool batch = false, std::uint64_t mib = 100) {
  return {.id = std::move(id), .batch = batch, .busy = true, .trimmed = false, .unused_for = {}, .started_ms = 1, .bytes = mib * kMiB, .grown_bytes = 0};
}
BrakeSandbox idle(BrakeSandbox one) {
  one.busy = false;
  one.unused_for = std::chrono::minutes(5);
  return one;
}
BrakeSandbox trimmed(BrakeSandbox one) {
  one.trimmed = true;
  return one;
}

class BrakeTest : public ::testing::Test {
 protected:
  // At each second; what it says, in order: "trim a", "pause a", "end a", "end a!" for a culprit.
  std::vector<std::string> look(const sys::NodeMemory& memory, const std::vector<BrakeSandbox>& all, int seconds = 1) {
    std::vector<std::string> said;
    for (int i = 0; i < seconds; ++i) {
      now_ += std::chrono::seconds(1);
      for (const BrakeAction& action : brake_.look(memory, all, now_))
        said.push_back((action.kind == Kind::kTrim ? "trim " : action.kind == Kind::kPause ? "pause " : "end ") + action.id + (action.culprit ? "!" : ""));
    }
    return said;
  }

  Brake brake_{{.reserve_bytes = kReserve}};
  Instant now_{};
};

TEST_F(BrakeTest, DoesNothingWhileThereIsRoom) {
  EXPECT_THAT(look(node(1001), {idle(sandbox("a", true))}, 60), IsEmpty());
  EXPECT_EQ(brake_.refusal(), "");
}

TEST_F(BrakeTest, TakesInNothingAtOnceAndSaysWhy) {
  look(node(999), {sandbox("a")});

  EXPECT_EQ(brake_.step(), Step::kNoAdmission);
  EXPECT_THAT(brake_.refusal(), HasSubstr("999 MiB available, 1000 MiB"));
}

TEST_F(BrakeTest, DoesNotFlapAtItsLimit) {
  look(node(999), {});
  look(node(1100), {});
  EXPECT_NE(brake_.refusal(), "") << "a quarter more than the reserve has to be there";

  look(node(1250), {});

  EXPECT_EQ(brake_.refusal(), "");
  EXPECT_EQ(brake_.step(), Step::kOff);
}

TEST_F(BrakeTest, WaitingForMemoryCountsWhereLittleIsAvailable) {
  look(node(8000, 90), {});
  EXPECT_EQ(brake_.refusal(), "") << "a sandbox that fights with its own limit";

  look(node(1900, 25), {});

  EXPECT_NE(brake_.refusal(), "");
}

TEST_F(BrakeTest, EachStepHasTimeToShowAndTheMildestComesFirst) {
  const std::vector<BrakeSandbox> all = {idle(sandbox("late")), idle(sandbox("bulk", true))};

  EXPECT_THAT(look(node(900), all, 5), IsEmpty());
  EXPECT_THAT(look(node(900), all, 1), ElementsAre("trim late", "trim bulk"));
  const std::vector<BrakeSandbox> after = {trimmed(all[0]), trimmed(all[1])};
  EXPECT_THAT(look(node(900), after, 4), IsEmpty());
  EXPECT_THAT(look(node(900), after, 1), ElementsAre("pause bulk"));
  EXPECT_THAT(look(node(900), {after[0]}, 5), ElementsAre("pause late"));
  EXPECT_THAT(look(node(900), {}, 60), IsEmpty()) << "nobody is left";
}

TEST_F(BrakeTest, StopsAsSoonAsThereIsRoomAgain) {
  const std::vector<BrakeSandbox> all = {trimmed(idle(sandbox("a", true)))};
  look(node(900), all, 5);

  EXPECT_THAT(look(node(1100), all, 60), IsEmpty()) << "more than the reserve is there: nobody has to give way";
}

TEST_F(BrakeTest, WhoRunsACommandIsNotPausedAndTheNewestOfTheBatchClassEnds) {
  BrakeSandbox older = sandbox("older", true), newer = sandbox("newer", true);
  newer.started_ms = 2;

  EXPECT_THAT(look(node(900), {older, newer, sandbox("late")}, 6), ElementsAre("end newer"));
}

TEST_F(BrakeTest, TheCauseOfTheShortageEndsForItselfAndNotItsNeighbour) {
  BrakeSandbox greedy = sandbox("greedy", false, 9000), neighbour = sandbox("neighbour", true, 100);
  greedy.grown_bytes = 6000 * kMiB;
  neighbour.grown_bytes = 50 * kMiB;

  EXPECT_THAT(look(node(900), {neighbour, greedy}, 6), ElementsAre("end greedy!"));
}

TEST_F(BrakeTest, WhoGrewWithinItsPartIsNoCause) {
  BrakeSandbox grown = sandbox("grown", false, 3000), other = sandbox("other", true, 9000);
  grown.grown_bytes = 2900 * kMiB;

  EXPECT_THAT(look(node(900), {grown, other}, 6), ElementsAre("end other"));
}

TEST_F(BrakeTest, NobodyOfTheLatencyClassEndsForOthers) { EXPECT_THAT(look(node(900), {sandbox("a"), sandbox("b")}, 60), IsEmpty()); }

TEST_F(BrakeTest, HurriesWhereAlmostNothingIsLeft) {
  const std::vector<BrakeSandbox> all = {sandbox("a", true), sandbox("b", true), sandbox("c", true)};

  EXPECT_EQ(look(node(200), all, 4).size(), 3U);
}

TEST_F(BrakeTest, AReserveOfNothingNeverBrakes) {
  Brake off{{.reserve_bytes = 0}};

  EXPECT_THAT(off.look(node(0, 100), {idle(sandbox("a", true))}, now_), IsEmpty());
  EXPECT_EQ(off.refusal(), "");
}

}  // namespace
}  // namespace dsec::edge
