// What every Store keeps to, on a file and in memory.
#include "store/store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <functional>

#include "store/sqlite_store.h"
#include "sys/file.h"

namespace dsec::contract {
namespace {

struct StoreCase {
  std::string name;
  bool on_disk = false;
};

class StoreContract : public ::testing::TestWithParam<StoreCase> {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(directory_), nullptr);
    auto opened = store::open_sqlite_store(GetParam().on_disk ? std::string(directory_) + "/db" : ":memory:");
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    store_ = std::move(*opened);
  }
  void TearDown() override {
    store_.reset();
    (void)sys::remove_tree_at(AT_FDCWD, directory_);
  }
  static store::Ref ref(const std::string& name, const std::string& layer) {
    return {.project = "default", .kind = store::RefKind::kImage, .name = name, .tag = "1", .layers = {layer}, .created_at_ms = 5};
  }

  char directory_[32] = "/tmp/dsec-store-XXXXXX";
  std::unique_ptr<store::Store> store_;
};

TEST_P(StoreContract, IsEmptyAtFirst) {
  EXPECT_TRUE(store_->keys()->empty());
  EXPECT_TRUE(store_->refs()->empty());
  EXPECT_TRUE(store_->services()->empty());
  EXPECT_TRUE(store_->history("default", {}, 10)->empty());
}

TEST_P(StoreContract, KeepsWhatIsInQuarantineThereUntilItIsReplaced) {
  store::Ref packed = ref("mine", "sha256:a");
  packed.kind = store::RefKind::kDiff;
  packed.quarantined = true;
  ASSERT_TRUE(store_->put_ref(packed).ok());
  EXPECT_TRUE(store_->refs()->at(0).quarantined);
  packed.quarantined = false;

  ASSERT_TRUE(store_->put_ref(packed).ok());

  const auto refs = store_->refs();
  ASSERT_EQ(refs->size(), 1u);
  EXPECT_EQ((*refs)[0].kind, store::RefKind::kDiff);
  EXPECT_FALSE((*refs)[0].quarantined);
}

TEST_P(StoreContract, ReplacesAKeyByItsId) {
  store::ApiKey key{.id = "key_a", .project = "default", .name = "one", .role = model::Role::kAdmin, .hash = "00", .created_at_ms = 1};
  ASSERT_TRUE(store_->put_key(key).ok());
  key.revoked_at_ms = 9;

  ASSERT_TRUE(store_->put_key(key).ok());

  const auto keys = store_->keys();
  ASSERT_EQ(keys->size(), 1u);
  EXPECT_EQ((*keys)[0].revoked_at_ms, 9);
  EXPECT_EQ((*keys)[0].role, model::Role::kAdmin);
}

TEST_P(StoreContract, ReplacesARefAndRemovesItOnce) {
  ASSERT_TRUE(store_->put_ref(ref("a", "sha256:1")).ok());
  ASSERT_TRUE(store_->put_ref(ref("a", "sha256:2")).ok());

  ASSERT_EQ(store_->refs()->size(), 1u);
  EXPECT_EQ((*store_->refs())[0].layers, std::vector<std::string>{"sha256:2"});
  EXPECT_TRUE(*store_->remove_ref("default", store::RefKind::kImage, "a", "1"));
  EXPECT_FALSE(*store_->remove_ref("default", store::RefKind::kImage, "a", "1"));
}

TEST_P(StoreContract, KeepsRefsOfTwoKindsApart) {
  store::Ref toolkit = ref("a", "sha256:2");
  toolkit.kind = store::RefKind::kToolkit;
  ASSERT_TRUE(store_->put_ref(ref("a", "sha256:1")).ok());
  ASSERT_TRUE(store_->put_ref(toolkit).ok());

  EXPECT_EQ(store_->refs()->size(), 2u);
}

TEST_P(StoreContract, KeepsTextAsItIs) {
  const std::string odd = "quote ' \" ; -- \n \xe6\x97\xa5";
  ASSERT_TRUE(store_->put_project({.name = odd, .parent = "", .created_at_ms = 1}).ok());

  const auto projects = store_->projects();

  bool found = false;
  for (const auto& project : *projects) found = found || project.name == odd;
  EXPECT_TRUE(found);
}

TEST_P(StoreContract, ReplacesAServiceAndRemovesItOnce) {
  model::ServiceDefinition service{.name = "local", .hosts = {{.host = "example.org", .port = 443}}};
  ASSERT_TRUE(store_->put_service(service).ok());
  service.hosts[0].port = 80;
  ASSERT_TRUE(store_->put_service(service).ok());

  ASSERT_EQ(store_->services()->size(), 1u);
  EXPECT_EQ((*store_->services())[0], service);
  EXPECT_TRUE(*store_->remove_service("local"));
  EXPECT_FALSE(*store_->remove_service("local"));
}

TEST_P(StoreContract, ReplacesAPinOfAProjectAndRemovesItOnce) {
  store::Pin pin{.project = "default", .digest = "sha256:a", .owner = "key_a", .reason = "first", .created_at_ms = 1, .expires_at_ms = 2};
  ASSERT_TRUE(store_->put_pin(pin).ok());
  pin.reason = "second";
  store::Pin other = pin;
  other.project = "another";
  ASSERT_TRUE(store_->put_pin(pin).ok());
  ASSERT_TRUE(store_->put_pin(other).ok());

  EXPECT_EQ(*store_->pins(), (std::vector<store::Pin>{other, pin}));

  EXPECT_TRUE(*store_->remove_pin("default", "sha256:a"));
  EXPECT_FALSE(*store_->remove_pin("default", "sha256:a"));
  EXPECT_EQ(*store_->pins(), std::vector<store::Pin>{other});
}

TEST_P(StoreContract, RemembersTheUnusedLayersOfTheLastLookAlone) {
  const std::vector<store::UnusedLayer> first = {{"sha256:a", 1, 0}, {"sha256:b", 2, 3}}, second = {{"sha256:b", 2, 4}};
  ASSERT_TRUE(store_->replace_unused_layers(first).ok());
  EXPECT_EQ(*store_->unused_layers(), first);
  ASSERT_TRUE(store_->replace_unused_layers(second).ok());
  EXPECT_EQ(*store_->unused_layers(), second);
  EXPECT_FALSE(store_->replace_unused_layers({{"sha256:c", 1, 0}, {"sha256:c", 2, 0}}).ok());
  EXPECT_EQ(*store_->unused_layers(), second) << "all or nothing";
}

TEST_P(StoreContract, KeepsRunningOperationsAndTheLastThatAreOver) {
  for (int i = 0; i < 1010; ++i)
    ASSERT_TRUE(store_->put_operation({"op" + std::to_string(i), "default", 1000 + i, i == 3, "{\"n\":" + std::to_string(i) + "}"}).ok());

  const auto kept = store_->operations();

  ASSERT_TRUE(kept.ok());
  ASSERT_EQ(kept->size(), 1001u);
  EXPECT_EQ((*kept)[0].id, "op3");
  EXPECT_TRUE((*kept)[0].running);
  EXPECT_EQ((*kept)[1].id, "op10");
  EXPECT_EQ(kept->back().record, "{\"n\":1009}");
}

// Sandboxes 1 to `count`, created and ended in that order.
std::vector<model::Sandbox> ended_ones(int count) {
  std::vector<model::Sandbox> out;
  for (int i = 1; i <= count; ++i) {
    model::Sandbox sandbox;
    sandbox.id = "sandbox" + std::to_string(i);
    sandbox.project = "default";
    sandbox.state = model::SandboxState::kEnded;
    sandbox.cause = model::EndCause::kOom;
    sandbox.end_detail = "why";
    sandbox.created_at_ms = i * 10;
    sandbox.ended_at_ms = i * 100;
    out.push_back(std::move(sandbox));
  }
  return out;
}

TEST_P(StoreContract, TellsHistoryInTheOrderOfCreationBoundedAndOnce) {
  std::vector<model::Sandbox> ended = ended_ones(5);
  ended[3].created_at_ms = ended[2].created_at_ms;  // then by id
  std::swap(ended[0], ended[4]);
  ASSERT_TRUE(store_->append_history(ended).ok());
  ASSERT_TRUE(store_->append_history(ended).ok());

  const auto first = store_->history("default", {}, 3);
  const auto next = store_->history("default", {(*first)[2].created_at_ms, (*first)[2].id}, 10);

  ASSERT_EQ(first->size(), 3u);
  EXPECT_EQ((*first)[0].id, "sandbox1");
  EXPECT_EQ((*first)[2].id, "sandbox3");
  ASSERT_EQ(next->size(), 2u);
  EXPECT_EQ((*next)[0].id, "sandbox4");
  EXPECT_TRUE(store_->history("other", {}, 10)->empty());
}

TEST_P(StoreContract, FindsOneOfTheHistoryByIdAndTrimsByAgeAndNumber) {
  ASSERT_TRUE(store_->append_history(ended_ones(5)).ok());

  const auto found = store_->past("default", "sandbox5");
  const auto others = store_->past("other", "sandbox5");
  ASSERT_TRUE(store_->trim_history(200, 3).ok());

  ASSERT_TRUE(found.ok()) << found.error().message();
  ASSERT_TRUE(found->has_value());
  EXPECT_EQ((*found)->cause, model::EndCause::kOom);
  EXPECT_EQ((*found)->end_detail, "why");
  EXPECT_FALSE(others->has_value());
  const auto left = store_->history("default", {}, 10);
  ASSERT_EQ(left->size(), 3u);
  EXPECT_EQ(left->front().id, "sandbox3");
}

TEST_P(StoreContract, FindsOneOfTheHistoryByPrefixAndByTheNewestOfAName) {
  std::vector<model::Sandbox> ended = ended_ones(4);
  ended[0].id = "abcd2222";
  ended[1].id = "abcd3333";
  for (int i : {1, 2, 3}) ended[i].spec.name = "n";
  ended[3].ended_at_ms = 1;
  ended[3].project = "other";
  ASSERT_TRUE(store_->append_history(ended).ok());

  EXPECT_EQ((*store_->find_past("default", "abcd2222"))->id, "abcd2222");
  EXPECT_EQ((*store_->find_past("default", "abcd3"))->id, "abcd3333");
  EXPECT_EQ(store_->find_past("default", "abcd").error().code(), ErrorCode::kConflict);
  EXPECT_FALSE(store_->find_past("default", "abc")->has_value());
  EXPECT_EQ((*store_->find_past("default", "n"))->id, "sandbox3");
  EXPECT_EQ((*store_->find_past("other", "n"))->id, "sandbox4");
  EXPECT_FALSE(store_->find_past("default", "")->has_value());
}

TEST_P(StoreContract, ErasesFromTheHistoryWhatIsNamed) {
  ASSERT_TRUE(store_->append_history(ended_ones(3)).ok());

  ASSERT_TRUE(store_->erase_history({"sandbox1", "sandbox3", "never there"}).ok());

  EXPECT_FALSE(store_->past("default", "sandbox1")->has_value());
  EXPECT_TRUE(store_->past("default", "sandbox2")->has_value());
}

INSTANTIATE_TEST_SUITE_P(All, StoreContract, ::testing::Values(StoreCase{"file", true}, StoreCase{"memory", false}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace dsec::contract
