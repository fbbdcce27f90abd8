// dsec-stored as a node has it: started and replaced by the keeper, told what to
// serve by files, and found again by the next `dsec serve`.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <random>
#include <thread>

#include "erofs/writer.h"
#include "image/layer_store.h"
#include "origin/chunk_index.h"
#include "origin/open_origin.h"
#include "root/support/engine.h"
#include "root/support/tree_model.h"
#include "stored/on_demand.h"
#include "sys/file.h"

namespace dsec {
namespace {

using origin::ChunkIndex;
using origin::Content;
using origin::ObjectKind;
using stored::OnDemand;

Deadline soon() { return Deadline::in(std::chrono::seconds(20)); }

class OnDemandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root: mounts";
    if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "this machine has no /dev/fuse";
    store_path_ = scratch_.path() + "/shared";
    std::filesystem::create_directory(store_path_);
    engine_ = std::make_unique<testing::Engine>();
    model_ = TreeModel::random(3);
    std::mt19937_64 random(4);
    for (int i = 0; i < 6; ++i) {
      std::string content(600 << 10, '\0');
      for (std::size_t at = 0; at < content.size(); at += 8) reinterpret_cast<std::uint64_t&>(content[at]) = random();
      model_.file("big" + std::to_string(i), std::move(content), {.mode = 0644});
    }
    write_image();
  }

  void write_image() {
    const std::string metadata = scratch_.path() + "/meta", data = scratch_.path() + "/data";
    const sys::Fd metadata_fd = sys::open_at(AT_FDCWD, metadata, O_RDWR | O_CREAT, 0600).value();
    const sys::Fd data_fd = sys::open_at(AT_FDCWD, data, O_RDWR | O_CREAT, 0600).value();
    erofs::Writer writer(metadata_fd.get(), data_fd.get(), {});
    ASSERT_TRUE(model_.give_to(writer).ok());
    hex_ = writer.finish({.unstated_seconds = 1, .identity = "test"}).value().data_digest;
    const Content content = Content::of_file(data_fd.get()).value();
    const auto store = origin::open_origin(store_path_, soon()).value();
    ASSERT_TRUE(store->publish({ObjectKind::kData, hex_}, content, soon()).ok());
    index_ = ChunkIndex::of(content).value().bytes();
  }
  std::unique_ptr<OnDemand> start() {
    auto started = OnDemand::start(engine_->data_dir(), {.store_url = store_path_}, engine_->keeper(), soon());
    EXPECT_TRUE(started.ok()) << started.error().message();
    return started.ok() ? std::move(*started) : nullptr;
  }
  // A store of layers with the image in it, its data on demand alone.
  struct Node {
    std::unique_ptr<OnDemand> on_demand;
    std::unique_ptr<image::LayerStore> layers;
    std::string digest;
  };
  Node node_with_layer() {
    Node node{.on_demand = start()};
    node.layers = image::LayerStore::open(engine_->data_dir() + "/layers", engine_->keeper(), node.on_demand.get()).value();
    EXPECT_TRUE(node.on_demand->serve(hex_, index_).ok());
    node.digest = node.layers->publish({.metadata = scratch_.path() + "/meta", .data = ""}, {}).value().digest;
    return node;
  }
  static std::string path_of(int fd) { return "/proc/self/fd/" + std::to_string(fd); }
  pid_t stored_pid() const {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const auto words = sys::read_file(entry.path().string() + "/cmdline");
      if (words.ok() && words->find("dsec-stored") != std::string::npos && words->find(engine_->data_dir()) != std::string::npos)
        return std::atoi(entry.path().filename().c_str());
    }
    return 0;
  }

  const testing::ScratchDirectory scratch_;
  std::string store_path_;
  std::unique_ptr<testing::Engine> engine_;
  TreeModel model_;
  std::string hex_;
  std::string index_;
};

TEST_F(OnDemandTest, ALayerWhoseDataIsInTheStoreAloneIsMountedAndRead) {
  const Node node = node_with_layer();

  const auto mounted = node.layers->mount(node.digest);

  ASSERT_TRUE(mounted.ok()) << mounted.error().message();
  EXPECT_EQ(model_.compare(path_of(*mounted)), "");
}

TEST_F(OnDemandTest, DataThatIsImportedHereIsKeptThoughItCouldBeReadOnDemand) {
  const auto on_demand = start();
  ASSERT_NE(on_demand, nullptr);
  const auto layers = image::LayerStore::open(engine_->data_dir() + "/layers", engine_->keeper(), on_demand.get()).value();
  ASSERT_TRUE(on_demand->serve(hex_, index_).ok());

  const auto record = layers->publish({.metadata = scratch_.path() + "/meta", .data = scratch_.path() + "/data"}, {});

  ASSERT_TRUE(record.ok()) << record.error().message();
  EXPECT_EQ(::access((engine_->data_dir() + "/layers/" + hex_ + ".data").c_str(), F_OK), 0);
}

TEST_F(OnDemandTest, AKilledServerIsReplacedAndReadersGoOn) {
  const Node node = node_with_layer();
  const int mounted = node.layers->mount(node.digest).value();

  for (int round = 0; round < 5; ++round) {
    const pid_t before = stored_pid();
    ASSERT_NE(before, 0);
    ::kill(before, SIGKILL);
    (void)sys::write_at(AT_FDCWD, "/proc/sys/vm/drop_caches", "3");
    EXPECT_EQ(model_.compare(path_of(mounted)), "") << round;
    EXPECT_NE(stored_pid(), before);
  }
}

TEST_F(OnDemandTest, TheNextServeGoesOnWithTheSameFilesystemAndAnotherStoreMeansAnotherServer) {
  auto on_demand = start();
  ASSERT_NE(on_demand, nullptr);
  ASSERT_TRUE(on_demand->serve(hex_, index_).ok());
  const pid_t first = stored_pid();
  on_demand = start();
  const pid_t same = stored_pid();
  auto moved = OnDemand::start(engine_->data_dir(), {.store_url = scratch_.path()}, engine_->keeper(), soon());
  ASSERT_TRUE(moved.ok()) << moved.error().message();
  const pid_t other = stored_pid();

  EXPECT_EQ(same, first);
  EXPECT_NE(other, first);
  EXPECT_EQ((*moved)->list().value(), std::vector<std::string>{hex_});
}

TEST_F(OnDemandTest, ALayerThatIsRemovedIsServedNoMore) {
  const Node node = node_with_layer();

  ASSERT_TRUE(node.layers->remove(node.digest).ok());

  EXPECT_TRUE(node.on_demand->list().value().empty());
  EXPECT_EQ(node.on_demand->find(hex_).error().code(), ErrorCode::kNotFound);
}

TEST_F(OnDemandTest, WhatNoLayerNamesIsSwept) {
  const auto on_demand = start();
  ASSERT_NE(on_demand, nullptr);
  ASSERT_TRUE(on_demand->serve(hex_, index_).ok());

  const auto layers = image::LayerStore::open(engine_->data_dir() + "/layers", engine_->keeper(), on_demand.get());

  ASSERT_TRUE(layers.ok());
  EXPECT_TRUE(on_demand->list().value().empty());
}

}  // namespace
}  // namespace dsec
