#include "image/layer_mounts.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "image/image_fixture.h"
#include "sys/file.h"


namespace dsec::image {
namespace {

Result<sys::Fd> some_mount() { return sys::open_at(AT_FDCWD, "/", O_PATH | O_DIRECTORY); }

TEST(LayerMountsTest, ASlowLayerDelaysNoOther) {
  MemoryKeeper keeper;
  LayerMounts mounts(keeper);
  std::promise<void> begun, answered;
  auto slow = std::async(std::launch::async, [&] {
    return mounts.get("slow", [&] {
      begun.set_value();
      answered.get_future().wait();
      return some_mount();
    });
  });
  begun.get_future().wait();
  EXPECT_TRUE(mounts.get("other", some_mount).ok());
  EXPECT_FALSE(mounts.find("slow"));
  answered.set_value();
  const Result<int> made = slow.get();
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(mounts.find("slow"), *made);
}

TEST(LayerMountsTest, IsMadeOnceForAllWhoWait) {
  MemoryKeeper keeper;
  LayerMounts mounts(keeper);
  std::atomic<int> asked = 0;
  std::vector<std::future<Result<int>>> waiting;
  for (int i = 0; i < 8; i++) {
    waiting.push_back(std::async(std::launch::async, [&] {
      return mounts.get("one", [&] {
        asked++;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return some_mount();
      });
    }));
  }
  for (auto& one : waiting) EXPECT_TRUE(one.get().ok());
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(keeper.get("layer/").value().size(), 1u);
}

TEST(LayerMountsTest, AFailureIsToldAndTheNextOneTriesAgain) {
  MemoryKeeper keeper;
  LayerMounts mounts(keeper);
  EXPECT_EQ(mounts.get("one", [] { return Result<sys::Fd>(Error(ErrorCode::kDataFault, "broken")); }).error().code(), ErrorCode::kDataFault);
  EXPECT_TRUE(keeper.get("layer/").value().empty());
  EXPECT_TRUE(mounts.get("one", some_mount).ok());
  EXPECT_TRUE(mounts.drop("one").ok());
  EXPECT_FALSE(mounts.find("one"));
  EXPECT_TRUE(keeper.get("layer/").value().empty());
}

}  // namespace
}  // namespace dsec::image
