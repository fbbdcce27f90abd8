#include "origin/collection.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "base/encoding.h"
#include "model/sha256.h"
#include "origin/lease.h"
#include "origin/manifest.h"
#include "origin/memory_origin.h"
#include "origin/walk.h"

namespace dsec::origin {
namespace {

using Fate = CollectedObject::Fate;
using std::chrono::hours;
using std::chrono::milliseconds;

Deadline soon() { return Deadline::in(std::chrono::seconds(20)); }
std::string hex_of(const std::string& text) { return to_hex(model::sha256(text)); }

// A layer as LayerExchange puts it; the signature is nobody's business here.
struct Layer {
  static constexpr std::size_t kObjects = 5;
  explicit Layer(const std::string& name)
      : data(Content::of_bytes("data of " + name)), index(Content::of_bytes("index of " + name)), metadata(Content::of_bytes("metadata of " + name)) {}
  std::string hex() const { return metadata.hex(); }
  std::vector<std::string> all() const { return {metadata.hex(), data.hex(), index.hex()}; }
  std::vector<ObjectName> objects() const {
    return {{ObjectKind::kData, data.hex()}, {ObjectKind::kIndex, index.hex()}, {ObjectKind::kMetadata, hex()}, {ObjectKind::kManifest, hex()}, {ObjectKind::kTrace, data.hex()}};
  }
  Result<void> put(Origin& origin) const {
    Manifest manifest{.metadata_bytes = metadata.size(), .data = {{data.hex(), data.size(), index.hex()}}};
    manifest.record.digest = "sha256:" + hex();
    DSEC_TRY(origin.publish(objects()[0], data, soon()));
    DSEC_TRY(origin.publish(objects()[1], index, soon()));
    DSEC_TRY(origin.publish(objects()[2], metadata, soon()));
    DSEC_TRY(origin.publish(objects()[4], Content::of_bytes("what was read first"), soon()));
    return origin.publish(objects()[3], Content::of_bytes("signature\n" + to_text(manifest)), soon());
  }
  std::size_t present(Origin& origin) const {
    std::size_t n = 0;
    for (const ObjectName& name : objects()) n += origin.open(name, soon()).ok() ? 1 : 0;
    return n;
  }
  Content data, index, metadata;
};

class CollectionTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/dsec-lease-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  LeaseHolder::Options node(const std::string& name) const { return {.node = name, .state_file = directory_ + "/" + name, .look_again = milliseconds(2)}; }
  CollectionOptions at_once(bool dry_run = false) const {
    return {.dry_run = dry_run, .delete_after = milliseconds(0), .settle = milliseconds(1), .run_limit = milliseconds(0)};
  }
  Collection run(Origin& origin, const CollectionOptions& options) {
    Result<Collection> done = collect(origin, clock_, options);
    EXPECT_TRUE(done.ok()) << done.error().message();
    return done.ok() ? std::move(done).value() : Collection{};
  }
  std::size_t objects_in(Origin& origin) {
    std::size_t n = 0;
    EXPECT_TRUE(each_object(origin, soon(), [&](const ObjectName& name) -> Result<void> {
                  n += name.kind == ObjectKind::kLease ? 0 : 1;
                  return {};
                }).ok());
    return n;
  }

  std::string directory_;
  ManualClock clock_;
  MemoryOrigin store_;
};

TEST_F(CollectionTest, WhatALeaseNamesStaysAndTheRestGoesAfterItsTime) {
  const Layer kept("kept"), lost("lost");
  ASSERT_TRUE(kept.put(store_).ok() && lost.put(store_).ok());
  LeaseHolder lease(store_, clock_, node("a"));
  ASSERT_TRUE(lease.renew({kept.hex()}, soon()).ok());
  CollectionOptions options = at_once();
  options.delete_after = hours(24);

  Collection first = run(store_, options);
  EXPECT_EQ(first.nodes, std::vector<std::string>{"a"});
  EXPECT_EQ(first.objects.size(), 3u) << "the layer, its data and its index";
  EXPECT_TRUE(std::all_of(first.objects.begin(), first.objects.end(), [](const auto& one) { return one.fate == Fate::kCondemned; }));
  clock_.advance(hours(23));
  ASSERT_TRUE(lease.renew({kept.hex()}, soon()).ok());
  run(store_, options);
  EXPECT_EQ(lost.present(store_), Layer::kObjects);
  clock_.advance(hours(2));
  const Collection last = run(store_, options);

  EXPECT_EQ(lost.present(store_), 0u);
  EXPECT_GT(last.freed_bytes, 0u);
  EXPECT_EQ(kept.present(store_), Layer::kObjects);
  EXPECT_EQ(objects_in(store_), Layer::kObjects) << "no mark is left";
}

TEST_F(CollectionTest, ADryRunChangesNothing) {
  const Layer lost("lost");
  ASSERT_TRUE(lost.put(store_).ok());
  for (int i = 0; i < 3; i++) EXPECT_EQ(run(store_, at_once(true)).objects.size(), 3u);
  EXPECT_EQ(objects_in(store_), Layer::kObjects);
  run(store_, at_once());
  const Collection due = run(store_, at_once(true));
  EXPECT_TRUE(std::all_of(due.objects.begin(), due.objects.end(), [](const auto& one) { return one.fate == Fate::kDue; }));
  EXPECT_GT(due.freed_bytes, 0u);
  EXPECT_EQ(lost.present(store_), Layer::kObjects);
}

TEST_F(CollectionTest, WhatKilledPublishersLeftGoesAndLivingOnesAreLeftAlone) {
  const auto object = [](const std::string& name) { return ObjectName{ObjectKind::kData, hex_of(name)}; };
  store_.leave({.id = "dead", .of = object("dead"), .age = hours(1), .bytes = 5});
  store_.leave({.id = "nameless", .of = {}, .age = hours(1), .bytes = 7});
  store_.leave({.id = "young", .of = object("young"), .age = std::chrono::minutes(9), .bytes = 11});
  store_.leave({.id = "leased", .of = object("leased"), .age = hours(47), .bytes = 13});
  store_.leave({.id = "leased and dead", .of = object("leased"), .age = hours(49), .bytes = 17});
  LeaseHolder lease(store_, clock_, node("a"));
  const Result<LeaseHolder::Held> held = lease.hold({object("leased").hex}, soon());
  ASSERT_TRUE(held.ok());
  CollectionOptions patient = at_once();
  patient.delete_after = hours(24);

  EXPECT_EQ(run(store_, patient).leftovers->removed, 1u) << "the one of a day and older that no lease protects any more";
  const Collection dry = run(store_, at_once(true));
  EXPECT_EQ(store_.leftovers(soon())->size(), 4u);
  const Collection real = run(store_, at_once());

  for (const Collection& one : {dry, real}) {
    EXPECT_EQ(one.leftovers->found, 4u);
    EXPECT_EQ(one.leftovers->removed, 2u);
    EXPECT_EQ(one.leftovers->bytes, 12u);
    EXPECT_EQ(one.freed_bytes, 12u);
  }
  const std::vector<Leftover> there = store_.leftovers(soon()).value();
  std::vector<std::string> left;
  for (const Leftover& one : there) left.push_back(one.id);
  EXPECT_EQ(left, (std::vector<std::string>{"young", "leased"}));
}

TEST_F(CollectionTest, AStoreThatDoesNotTellOfUploadsIsCollectedAllTheSame) {
  class Reserved final : public Origin {
   public:
    Reserved(Origin& real, ErrorCode says) : real_(real), says_(says) {}
    Result<std::unique_ptr<Object>> open(const ObjectName& name, Deadline deadline) override { return real_.open(name, deadline); }
    Result<void> publish(const ObjectName& name, const Content& content, Deadline deadline) override { return real_.publish(name, content, deadline); }
    Result<ObjectList> list(const std::string& after, std::size_t limit, Deadline deadline) override { return real_.list(after, limit, deadline); }
    Result<void> remove(const ObjectName& name, Deadline deadline) override { return real_.remove(name, deadline); }
    Result<std::vector<Leftover>> leftovers(Deadline) override { return Error(says_, "no"); }
    Result<void> remove_leftover(const Leftover&, Deadline) override { return Error(says_, "no"); }
    std::string description() const override { return "reserved"; }

   private:
    Origin& real_;
    const ErrorCode says_;
  };
  const Layer lost("lost");
  ASSERT_TRUE(lost.put(store_).ok());
  Reserved denied(store_, ErrorCode::kPermissionDenied), unsupported(store_, ErrorCode::kUnsupported), away(store_, ErrorCode::kUnavailable);

  EXPECT_EQ(collect(away, clock_, at_once()).error().code(), ErrorCode::kUnavailable);
  EXPECT_FALSE(run(denied, at_once()).leftovers);
  EXPECT_FALSE(run(unsupported, at_once()).leftovers);

  EXPECT_EQ(lost.present(store_), 0u);
}

TEST_F(CollectionTest, WhatIsHeldAgainIsForgiven) {
  const Layer layer("layer");
  ASSERT_TRUE(layer.put(store_).ok());
  run(store_, at_once());
  EXPECT_EQ(objects_in(store_), Layer::kObjects + 3) << "three marks";
  LeaseHolder lease(store_, clock_, node("a"));
  const Result<LeaseHolder::Held> held = lease.hold({layer.hex()}, soon());
  ASSERT_TRUE(held.ok());

  EXPECT_TRUE(run(store_, at_once()).objects.empty());

  EXPECT_EQ(objects_in(store_), Layer::kObjects);
}

TEST_F(CollectionTest, ALeaseThatExpiredCountsForNothingAndGoes) {
  const Layer layer("layer");
  ASSERT_TRUE(layer.put(store_).ok());
  LeaseHolder lease(store_, clock_, node("gone"));
  ASSERT_TRUE(lease.renew({layer.hex()}, soon()).ok());
  clock_.advance(hours(24) + std::chrono::minutes(59));
  EXPECT_TRUE(run(store_, at_once()).objects.empty()) << "clocks of nodes differ";
  clock_.advance(std::chrono::minutes(2));

  EXPECT_EQ(run(store_, at_once()).expired_leases, 1u);
  run(store_, at_once());

  EXPECT_EQ(layer.present(store_), 0u);
  EXPECT_TRUE(lease.renew({}, soon()).value()) << "the node is told that it had none";
  EXPECT_FALSE(lease.renew({}, soon()).value());
}

TEST_F(CollectionTest, NothingGoesWhileALeaseCannotBeRead) {
  const Layer lost("lost");
  ASSERT_TRUE(lost.put(store_).ok());
  run(store_, at_once());
  const Content broken = Content::of_bytes("no lease");
  ASSERT_TRUE(store_.publish({ObjectKind::kLease, broken.hex()}, broken, soon()).ok());

  EXPECT_EQ(collect(store_, clock_, at_once()).error().code(), ErrorCode::kDataFault);

  EXPECT_EQ(lost.present(store_), Layer::kObjects);
}

TEST_F(CollectionTest, AStoreHasOneRunAtATime) {
  CollectionOptions options = at_once();
  options.run_limit = hours(6);
  const ObjectName mark{ObjectKind::kDeleting, hex_of("dsec garbage collection")};
  ASSERT_TRUE(store_.publish(mark, Content::of_bytes("{\"at_ms\":1800000000000,\"node\":\"another\",\"run\":\"\"}"), soon()).ok());
  EXPECT_EQ(collect(store_, clock_, options).error().code(), ErrorCode::kConflict);
  EXPECT_TRUE(collect(store_, clock_, at_once(true)).ok()) << "a dry run is in nobody's way";
  clock_.advance(hours(6));
  EXPECT_TRUE(collect(store_, clock_, options).ok()) << "it is taken for dead";
  EXPECT_EQ(objects_in(store_), 0u);
}

TEST_F(CollectionTest, TheNodeWhoseRunWasCutOffGoesOnAtOnce) {
  CollectionOptions options = at_once();
  options.run_limit = hours(6);
  options.node = "a";
  const ObjectName mark{ObjectKind::kDeleting, hex_of("dsec garbage collection")};
  ASSERT_TRUE(store_.publish(mark, Content::of_bytes("{\"at_ms\":1800000000000,\"node\":\"a\",\"run\":\"\"}"), soon()).ok());
  EXPECT_FALSE(was_cut_off(store_, "b", soon()).value());
  EXPECT_TRUE(was_cut_off(store_, "a", soon()).value());
  run(store_, options);
  EXPECT_FALSE(was_cut_off(store_, "a", soon()).value());
}

TEST_F(CollectionTest, NobodyWaitsForARunThatHadLessPatienceThanTheNext) {
  const Layer lost("lost");
  ASSERT_TRUE(lost.put(store_).ok());
  run(store_, at_once());
  ASSERT_TRUE(store_.publish({ObjectKind::kDeleting, lost.hex()}, Content::of_bytes("{\"at_ms\":1,\"node\":\"\",\"run\":\"\"}"), soon()).ok());
  CollectionOptions patient = at_once();
  patient.delete_after = hours(24);
  run(store_, patient);

  LeaseHolder lease(store_, clock_, node("a"));
  EXPECT_TRUE(lease.hold({lost.hex()}, Deadline::in(milliseconds(50))).ok());
}

TEST_F(CollectionTest, WhoNeedsWhatIsBeingRemovedWaitsForTheEnd) {
  const std::string hex = hex_of("layer");
  ASSERT_TRUE(store_.publish({ObjectKind::kDeleting, hex}, Content::of_bytes("{\"at_ms\":1,\"node\":\"\",\"run\":\"\"}"), soon()).ok());
  LeaseHolder lease(store_, clock_, node("a"));
  EXPECT_EQ(lease.hold({hex}, Deadline::in(milliseconds(20))).error().code(), ErrorCode::kUnavailable);

  std::thread remover([&] {
    std::this_thread::sleep_for(milliseconds(30));
    ASSERT_TRUE(store_.remove({ObjectKind::kDeleting, hex}, soon()).ok());
  });
  EXPECT_TRUE(lease.hold({hex}, soon()).ok());
  remover.join();
}

TEST_F(CollectionTest, ALeaseOfAnEarlierLifeHoldsUntilItIsRenewed) {
  const Layer layer("layer");
  ASSERT_TRUE(layer.put(store_).ok());
  {
    LeaseHolder before(store_, clock_, node("a"));
    ASSERT_TRUE(before.renew({layer.hex()}, soon()).ok());
  }
  LeaseHolder after(store_, clock_, node("a"));
  ASSERT_TRUE(after.hold({hex_of("another")}, soon()).ok());
  EXPECT_TRUE(run(store_, at_once()).objects.empty());
  ASSERT_TRUE(after.renew({}, soon()).ok());
  for (int i = 0; i < 2; i++) run(store_, at_once());
  EXPECT_EQ(layer.present(store_), 0u);
  std::size_t leases = 0;
  ASSERT_TRUE(each_object(store_, soon(), [&](const ObjectName& name) -> Result<void> {
                leases += name.kind == ObjectKind::kLease ? 1 : 0;
                return {};
              }).ok());
  EXPECT_EQ(leases, 1u);
}

// An origin whose process is killed at the call of this number.
class DyingOrigin final : public Origin {
 public:
  DyingOrigin(Origin& real, int calls) : real_(real), left_(calls) {}
  Result<std::unique_ptr<Object>> open(const ObjectName& name, Deadline deadline) override {
    if (--left_ < 0) return dead();
    return real_.open(name, deadline);
  }
  Result<void> publish(const ObjectName& name, const Content& content, Deadline deadline) override {
    if (--left_ < 0) return dead();
    return real_.publish(name, content, deadline);
  }
  Result<ObjectList> list(const std::string& after, std::size_t limit, Deadline deadline) override {
    if (--left_ < 0) return dead();
    return real_.list(after, limit, deadline);
  }
  Result<void> remove(const ObjectName& name, Deadline deadline) override {
    if (--left_ < 0) return dead();
    return real_.remove(name, deadline);
  }
  Result<std::vector<Leftover>> leftovers(Deadline deadline) override {
    if (--left_ < 0) return dead();
    return real_.leftovers(deadline);
  }
  Result<void> remove_leftover(const Leftover& leftover, Deadline deadline) override {
    if (--left_ < 0) return dead();
    return real_.remove_leftover(leftover, deadline);
  }
  std::string description() const override { return "dying"; }

 private:
  static Error dead() { return Error(ErrorCode::kUnavailable, "dead"); }
  Origin& real_;
  int left_;
};

TEST_F(CollectionTest, ARunThatIsCutOffAnywhereIsEndedByTheNext) {
  const Layer kept("kept"), lost("lost");
  bool whole = false;
  for (int calls = 0; !whole; calls++) {
    ASSERT_LT(calls, 1000);
    MemoryOrigin store;
    ASSERT_TRUE(kept.put(store).ok() && lost.put(store).ok());
    LeaseHolder lease(store, clock_, node("n" + std::to_string(calls)));
    ASSERT_TRUE(lease.renew({kept.hex()}, soon()).ok());
    run(store, at_once());
    DyingOrigin dying(store, calls);
    whole = collect(dying, clock_, at_once()).ok();
    if (lost.present(store) != Layer::kObjects) EXPECT_FALSE(store.open({ObjectKind::kManifest, lost.hex()}, soon()).ok()) << "a manifest that lacks a part, after " << calls;
    for (int i = 0; i < 2; i++) run(store, at_once());
    EXPECT_EQ(lost.present(store), 0u) << calls;
    EXPECT_EQ(kept.present(store), Layer::kObjects) << calls;
    EXPECT_EQ(objects_in(store), Layer::kObjects) << calls;
  }
}

// Nodes put, take and let go as they like while the garbage is collected all the time.
TEST_F(CollectionTest, NothingThatIsHeldIsEverMissed) {
  std::vector<Layer> layers;
  for (const char* name : {"1", "2", "3"}) layers.emplace_back(name);
  std::atomic<bool> over = false;
  std::atomic<int> removed = 0;
  std::vector<std::thread> nodes;
  for (int n = 0; n < 3; n++) {
    nodes.emplace_back([&, n] {
      std::mt19937 random(static_cast<unsigned>(n));
      LeaseHolder lease(store_, clock_, node("node" + std::to_string(n)));
      for (int i = 0; i < 60; i++) {
        const Layer& layer = layers[random() % layers.size()];
        Result<LeaseHolder::Held> held = lease.hold(layer.all(), soon());
        ASSERT_TRUE(held.ok()) << held.error().message();
        const Result<void> put = layer.put(store_);
        ASSERT_TRUE(put.ok()) << put.error().message();
        for (int look = 0; look < 5; look++) {
          ASSERT_EQ(layer.present(store_), Layer::kObjects) << "node " << n << ", round " << i;
          std::this_thread::sleep_for(milliseconds(random() % 3));
        }
        held = LeaseHolder::Held();
        ASSERT_TRUE(lease.renew({}, soon()).ok());
        std::this_thread::sleep_for(milliseconds(random() % 20));
      }
    });
  }
  std::thread collector([&] {
    while (!over) {
      const Result<Collection> done = collect(store_, clock_, at_once());
      ASSERT_TRUE(done.ok()) << done.error().message();
      for (const CollectedObject& object : done->objects) removed += object.fate == Fate::kRemoved ? 1 : 0;
    }
  });
  for (std::thread& one : nodes) one.join();
  over = true;
  collector.join();
  EXPECT_GT(removed, 0) << "else nothing was put to the test";
}

TEST(LeaseTest, ComesBackFromItsTextAndRefusesAnythingElse) {
  const Lease lease{"node", 1, 2, {hex_of("a"), hex_of("b")}};
  EXPECT_EQ(parse_lease(to_text(lease)).value(), lease);
  for (const char* text : {"", "[]", "{}", R"({"node":"","written_ms":1,"expires_ms":2,"hexes":[]})", R"({"node":"n","written_ms":1,"expires_ms":2,"hexes":["x"]})",
                           R"({"node":"n","written_ms":1,"expires_ms":2,"hexes":[],"more":1})"})
    EXPECT_EQ(parse_lease(text).error().code(), ErrorCode::kDataFault) << text;
}

}  // namespace
}  // namespace dsec::origin
