#include "placement/placement.h"

#include <gtest/gtest.h>

#include <map>

namespace dsec::placement {
namespace {

EdgeLoad edge(std::uint64_t sandboxes, std::uint64_t most = 100) {
  return {.node = "n", .backends = {"container"}, .sandboxes = sandboxes, .most_sandboxes = most};
}
const Demand kContainer{.backend = "container", .memory_mb = 512};

TEST(PlacementTest, TakesTheOnlyEdgeEvenWhenItIsFull) {
  SystemRandom random;

  EXPECT_EQ(place({edge(0)}, kContainer, random).value(), 0u);
  EXPECT_EQ(place({edge(100)}, kContainer, random).value(), 0u);
}

TEST(PlacementTest, SaysWhyNoEdgeWillDo) {
  SystemRandom random;
  EdgeLoad stopping = edge(0);
  stopping.accepting = false;

  EXPECT_EQ(place({}, kContainer, random).error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(place({edge(0)}, {.backend = "vm"}, random).error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(place({stopping}, kContainer, random).error().code(), ErrorCode::kUnavailable);
}

TEST(PlacementTest, TakesOnlyEdgesOfTheArchitecture) {
  SystemRandom random;
  EdgeLoad arm = edge(90);
  arm.architecture = "arm64";
  EdgeLoad other = edge(0);
  other.architecture = "amd64";
  const Demand for_arm{.backend = "container", .memory_mb = 512, .architecture = "arm64"};

  EXPECT_EQ(place({other, arm}, for_arm, random).value(), 1u);
  EXPECT_EQ(place({other}, for_arm, random).error().code(), ErrorCode::kUnsupported);
}

TEST(PlacementTest, PrefersRoomAndThenTheLessLoaded) {
  SystemRandom random;
  EdgeLoad no_memory = edge(1);
  no_memory.memory_mb = 1000;
  no_memory.most_memory_mb = 1024;

  EXPECT_EQ(place({edge(100), edge(50), no_memory}, kContainer, random).value(), 1u);
  EXPECT_EQ(place({edge(90), edge(50), edge(10)}, kContainer, random).value(), 2u);
  EXPECT_EQ(place({edge(100, 100), edge(300, 200)}, kContainer, random).value(), 0u) << "the least loaded of the full";
}

// With stale numbers, the emptiest of all would get every create of every apiserver.
TEST(PlacementTest, SpreadsWhatManyPlaceByTheSameNumbers) {
  SystemRandom random;
  std::vector<EdgeLoad> edges;
  for (std::uint64_t i = 0; i < 50; ++i) edges.push_back(edge(i));
  std::map<std::size_t, int> chosen;

  for (int i = 0; i < 5000; ++i) ++chosen[place(edges, kContainer, random).value()];

  EXPECT_GT(chosen.size(), 30u);
  EXPECT_LT(chosen[0], 500) << "about 3 in 50";
  EXPECT_EQ(chosen.count(49), 0u) << "the fullest never wins among three";
  EXPECT_GT(chosen[0], chosen[20]);
}

}  // namespace
}  // namespace dsec::placement
