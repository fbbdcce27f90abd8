// Two nodes and the store between them.
#include "image/layer_exchange.h"

#include <atomic>
#include <thread>

#include "image/image_fixture.h"
#include "model/builder_key.h"
#include "origin/memory_origin.h"

namespace dsec::image {
namespace {

using origin::ObjectKind;
using origin::ObjectName;

// That no compression makes small.
std::string noise(std::size_t size) {
  std::string out(size, '\0');
  std::uint32_t state = 3;
  for (char& byte : out) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return out;
}
const std::string kLarge = noise(700'000);

class LayerExchangeTest : public ImageTest {
 protected:
  void SetUp() override {
    ImageTest::SetUp();
    if (IsSkipped()) return;
    other_store_ = std::move(LayerStore::open(directory_ + "/other/layers", other_keeper_)).value();
    exchange_ = make(*store_, "/exchange", key_, {public_of(key_)});
    other_ = make(*other_store_, "/other/exchange", other_key_, {public_of(key_), public_of(other_key_)});
  }
  void TearDown() override {
    exchange_.reset();
    other_.reset();
    other_store_.reset();
    other_keeper_.kept.clear();
    ImageTest::TearDown();
  }

  static std::string public_of(const std::string& key) { return model::public_builder_key(key).value(); }
  std::unique_ptr<LayerExchange> make(LayerStore& layers, const std::string& work, const std::string& key, std::vector<std::string> trusted,
                                      std::map<std::string, origin::Origin*> others = {}) {
    return std::move(LayerExchange::create({.node = "node" + work, .lease_file = directory_ + work + ".lease", .work_directory = directory_ + work, .signing_key = key, .trusted_keys = std::move(trusted), .others = std::move(others)}, origin_, layers)).value();
  }
  // With content in both files.
  model::LayerRecord imported() {
    auto record = import_tar(TarFixture().file("small", "text").file("large", kLarge).finished());
    EXPECT_TRUE(record.ok()) << record.error().message();
    return std::move(record).value();
  }
  static std::string hex_of(const model::LayerRecord& record) { return record.digest.substr(7); }
  std::string object(const ObjectName& name) { return origin::read_whole(origin_, name, 64 << 20, Deadline::in(std::chrono::seconds(5))).value(); }
  ObjectName object_of(ObjectKind kind) {
    const origin::ObjectList all = origin_.list("", 100, Deadline::in(std::chrono::seconds(5))).value();
    for (const ObjectName& name : all.names)
      if (name.kind == kind) return name;
    ADD_FAILURE() << "no such object";
    return {};
  }
  void change_byte(const ObjectName& name, std::size_t at) {
    std::string bytes = object(name);
    bytes.at(at) = static_cast<char>(bytes.at(at) ^ 1);
    origin_.replace(name, bytes);
  }
  void expect_nothing_taken() {
    EXPECT_TRUE(other_store_->list().empty());
    EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/other/exchange"));
    EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/other/layers"));
  }

  const std::string key_ = model::make_builder_key();
  const std::string other_key_ = model::make_builder_key();
  origin::MemoryOrigin origin_;
  MemoryKeeper other_keeper_;
  std::unique_ptr<LayerStore> other_store_;
  std::unique_ptr<LayerExchange> exchange_;
  std::unique_ptr<LayerExchange> other_;
};

TEST_F(LayerExchangeTest, ALayerOfOneNodeMountsOnAnother) {
  const model::LayerRecord record = imported();

  ASSERT_TRUE(exchange_->put(record.digest).ok());
  const Result<model::LayerRecord> taken = other_->take(record.digest);

  ASSERT_TRUE(taken.ok()) << taken.error().message();
  EXPECT_EQ(*taken, record);
  const int mount = other_store_->mount(record.digest).value();
  EXPECT_EQ(content(mount, "small"), "text");
  EXPECT_TRUE(content(mount, "large") == kLarge);
  EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/other/exchange"));
}

TEST_F(LayerExchangeTest, PuttingTwiceAndTakingTwiceIsDoneAlready) {
  const model::LayerRecord record = imported();
  ASSERT_TRUE(exchange_->put(record.digest).ok());
  ASSERT_TRUE(other_->take(record.digest).ok());

  EXPECT_TRUE(exchange_->put(record.digest).ok());
  EXPECT_TRUE(other_->put(record.digest).ok()) << "signed by somebody else first";
  EXPECT_TRUE(other_->take(record.digest).ok());
}

TEST_F(LayerExchangeTest, TellsTheTracesThatTheStoreHasOfALayersData) {
  const model::LayerRecord record = imported();
  ASSERT_TRUE(exchange_->put(record.digest).ok());
  const std::string hex = store_->data(record.digest).value().at(0).device.digest;

  const auto none = exchange_->traces(record.digest);
  origin_.replace({ObjectKind::kTrace, hex}, "what a node left");
  const auto one = exchange_->traces(record.digest);

  ASSERT_TRUE(none.ok() && one.ok());
  EXPECT_TRUE(none->empty());
  EXPECT_EQ(*one, (std::map<std::string, std::string>{{hex, "what a node left"}}));
  EXPECT_TRUE(store_->data(record.digest).value().at(0).whole);
}

TEST_F(LayerExchangeTest, WhatIsPutIntoAnotherStoreIsSafeFromItsCollectionForATime) {
  origin::MemoryOrigin elsewhere;
  const auto exchange = make(*store_, "/exchange", key_, {public_of(key_)}, {{"elsewhere", &elsewhere}});
  const model::LayerRecord record = imported();
  ASSERT_TRUE(exchange->put(record.digest, "elsewhere").ok());
  ASSERT_TRUE(exchange->put(record.digest, "elsewhere").ok()) << "and again";
  EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/exchange"));
  const auto objects = [&] { return elsewhere.list("", 100, Deadline::in(std::chrono::seconds(5))).value().names.size(); };
  const std::size_t put = objects();
  ManualClock clock;
  clock.advance(std::chrono::duration_cast<Duration>(std::chrono::system_clock::now() - clock.wall_now()));
  const origin::CollectionOptions at_once{.node = "there", .delete_after = std::chrono::milliseconds(0), .settle = std::chrono::milliseconds(1), .grace = std::chrono::milliseconds(0)};

  for (int i = 0; i < 3; ++i) {
    const auto early = origin::collect(elsewhere, clock, at_once);
    ASSERT_TRUE(early.ok()) << early.error().message();
    EXPECT_TRUE(early->objects.empty());
    EXPECT_TRUE(std::all_of(early->nodes.begin(), early->nodes.end(), [](const std::string& node) { return node.starts_with("copy by "); }));
  }
  EXPECT_EQ(objects(), put);
  clock.advance(std::chrono::hours(8 * 24));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(origin::collect(elsewhere, clock, at_once).ok());

  EXPECT_EQ(objects(), 0u);
}

TEST_F(LayerExchangeTest, WhatTheStoreLacksIsNotFound) {
  EXPECT_EQ(other_->take("sha256:" + std::string(64, 'a')).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(other_->take("sha256:a").error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(LayerExchangeTest, TakesNothingThatNobodyTrustedSigned) {
  const model::LayerRecord record = imported();
  const auto stranger = make(*store_, "/stranger", model::make_builder_key(), {});
  ASSERT_TRUE(stranger->put(record.digest).ok());

  EXPECT_EQ(other_->take(record.digest).error().code(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(exchange_->put(record.digest).error().code(), ErrorCode::kConflict) << "a stranger's manifest stands where ours belongs";
  expect_nothing_taken();
}

TEST_F(LayerExchangeTest, AChangedByteOfAnyObjectIsRefused) {
  const model::LayerRecord record = imported();
  ASSERT_TRUE(exchange_->put(record.digest).ok());
  for (const ObjectKind kind : {ObjectKind::kMetadata, ObjectKind::kIndex, ObjectKind::kData, ObjectKind::kManifest}) {
    const ObjectName name = object_of(kind);
    const std::string good = object(name);
    change_byte(name, good.size() / 2);

    const Result<model::LayerRecord> taken = other_->take(record.digest);

    ASSERT_FALSE(taken.ok()) << name.path();
    EXPECT_TRUE(taken.error().code() == ErrorCode::kDataFault || taken.error().code() == ErrorCode::kPermissionDenied) << taken.error().message();
    expect_nothing_taken();
    origin_.replace(name, good);
  }
  EXPECT_TRUE(other_->take(record.digest).ok());
}

TEST_F(LayerExchangeTest, AMissingObjectLeavesNothingBehind) {
  const model::LayerRecord record = imported();
  ASSERT_TRUE(exchange_->put(record.digest).ok());
  const ObjectName data = object_of(ObjectKind::kData);
  ASSERT_TRUE(origin_.remove(data, Deadline::in(std::chrono::seconds(5))).ok());

  EXPECT_EQ(other_->take(record.digest).error().code(), ErrorCode::kNotFound);
  expect_nothing_taken();
}

// A builder that is trusted may still have been taken over: the kernel's door
// is kept by the checker.
TEST_F(LayerExchangeTest, AnUnsoundImageOfATrustedBuilderIsRefused) {
  const std::string metadata(8192, 'z');
  const origin::Content content = origin::Content::of_bytes(metadata);
  origin::Manifest manifest{.metadata_bytes = metadata.size()};
  manifest.record.digest = "sha256:" + content.hex();
  const Deadline soon = Deadline::in(std::chrono::seconds(5));
  ASSERT_TRUE(origin_.publish({ObjectKind::kMetadata, content.hex()}, content, soon).ok());
  ASSERT_TRUE(origin_.publish({ObjectKind::kManifest, content.hex()}, origin::Content::of_bytes(origin::seal_manifest(manifest, key_).value()), soon).ok());

  EXPECT_EQ(other_->take(manifest.record.digest).error().code(), ErrorCode::kDataFault);
  expect_nothing_taken();
}

TEST_F(LayerExchangeTest, ManyThreadsTakeALayerOnce) {
  const model::LayerRecord record = imported();
  ASSERT_TRUE(exchange_->put(record.digest).ok());
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { good += other_->take(record.digest).ok() ? 1 : 0; });
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(good, 8);
  EXPECT_EQ(other_store_->list().size(), 1U);
}

}  // namespace
}  // namespace dsec::image
