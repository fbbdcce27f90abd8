#include "origin_contract.h"

#include <set>

#include "origin_adapters.h"

namespace dsec::origin {
namespace {

TEST_P(OriginContractTest, GivesBackEveryRangeOfWhatWasPublished) {
  const std::string bytes = bytes_of(300'000);
  const ObjectName name = put(bytes);

  const Result<std::unique_ptr<Object>> object = origin().open(name, soon());

  ASSERT_TRUE(object.ok()) << object.error().message();
  EXPECT_EQ((*object)->size(), bytes.size());
  for (const auto& [offset, length] : std::vector<std::pair<std::size_t, std::size_t>>{
           {0, 1}, {0, 300'000}, {1, 4096}, {4095, 2}, {4096, 4096}, {131'072, 131'072}, {299'999, 1}, {262'144, 37'856}, {300'000, 0}, {17, 0}}) {
    const Result<Buffer> got = (*object)->read(offset, length, soon());
    ASSERT_TRUE(got.ok()) << offset << "+" << length << ": " << got.error().message();
    EXPECT_EQ(got->view(), std::string_view(bytes).substr(offset, length)) << offset << "+" << length;
  }
}

TEST_P(OriginContractTest, RefusesToReadPastTheEnd) {
  const Result<std::unique_ptr<Object>> object = origin().open(put("0123456789"), soon());

  ASSERT_TRUE(object.ok());
  EXPECT_EQ((*object)->read(0, 11, soon()).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ((*object)->read(11, 0, soon()).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ((*object)->read(~std::uint64_t{0}, 2, soon()).error().code(), ErrorCode::kInvalidArgument);
}

TEST_P(OriginContractTest, KeepsObjectsOfEveryKindAndOfNoBytes) {
  const std::string hex(64, 'e');
  const Content empty = Content::of_bytes("");
  ASSERT_TRUE(origin().publish({ObjectKind::kManifest, hex}, Content::of_bytes("{}"), soon()).ok());
  ASSERT_TRUE(origin().publish({ObjectKind::kIndex, empty.hex()}, empty, soon()).ok());

  EXPECT_EQ(read_whole(origin(), {ObjectKind::kManifest, hex}, 10, soon()).value(), "{}");
  EXPECT_EQ(read_whole(origin(), {ObjectKind::kIndex, empty.hex()}, 10, soon()).value(), "");
}

TEST_P(OriginContractTest, SaysWhatIsNotThere) {
  const ObjectName name{ObjectKind::kData, std::string(64, '7')};

  EXPECT_EQ(origin().open(name, soon()).error().code(), ErrorCode::kNotFound);
  EXPECT_TRUE(origin().remove(name, soon()).ok()) << "removing nothing is done already";
}

TEST_P(OriginContractTest, AnEqualObjectIsSuccessAndAnotherIsAConflictThatChangesNothing) {
  const ObjectName name{ObjectKind::kManifest, std::string(64, 'a')};
  ASSERT_TRUE(origin().publish(name, Content::of_bytes("first"), soon()).ok());

  EXPECT_TRUE(origin().publish(name, Content::of_bytes("first"), soon()).ok());
  EXPECT_EQ(origin().publish(name, Content::of_bytes("other"), soon()).error().code(), ErrorCode::kConflict);
  EXPECT_EQ(origin().publish(name, Content::of_bytes("longer than it"), soon()).error().code(), ErrorCode::kConflict);
  EXPECT_EQ(read_whole(origin(), name, 100, soon()).value(), "first");
}

// Whoever is killed while he publishes leaves bytes that are no object and cost room.
TEST_P(OriginContractTest, TellsWhatAKilledPublisherLeftAndRemovesIt) {
  const std::string bytes = bytes_of(100'000);
  const Content whole = Content::of_bytes(bytes + "and more");
  ASSERT_TRUE(origin().leftovers(soon())->empty());
  fixture_->leave(data_name(whole), bytes);

  const Result<std::vector<Leftover>> left = other().leftovers(soon());
  ASSERT_TRUE(left.ok()) << left.error().message();
  ASSERT_EQ(left->size(), 1u);
  EXPECT_EQ(left->front().of, data_name(whole));
  EXPECT_EQ(left->front().bytes, bytes.size());
  EXPECT_LT(left->front().age, std::chrono::minutes(5));
  EXPECT_GT(left->front().age, std::chrono::minutes(-5));
  EXPECT_TRUE(origin().list("", 10, soon())->names.empty());
  ASSERT_TRUE(origin().publish(data_name(whole), whole, soon()).ok());

  EXPECT_TRUE(other().remove_leftover(left->front(), soon()).ok());
  EXPECT_TRUE(origin().remove_leftover(left->front(), soon()).ok()) << "it is gone already";

  EXPECT_TRUE(origin().leftovers(soon())->empty());
  EXPECT_EQ(read_whole(origin(), data_name(whole), 1 << 20, soon()).value(), bytes + "and more");
}

TEST_P(OriginContractTest, WhatWasPublishedLeavesNothing) {
  put(bytes_of(100));
  put(bytes_of(20 << 20));

  EXPECT_TRUE(origin().leftovers(soon())->empty());
}

TEST_P(OriginContractTest, RefusesBytesThatTheirNameDoesNotName) {
  const ObjectName name{ObjectKind::kData, Content::of_bytes("right").hex()};

  EXPECT_EQ(origin().publish(name, Content::of_bytes("wrong"), soon()).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(origin().open(name, soon()).error().code(), ErrorCode::kNotFound);
}

TEST_P(OriginContractTest, AnotherNodeReadsWhatWasPublished) {
  const std::string bytes = bytes_of(70'000);
  const ObjectName name = put(bytes);

  const Result<std::string> got = read_whole(other(), name, 1 << 20, soon());

  ASSERT_TRUE(got.ok()) << got.error().message();
  EXPECT_EQ(*got, bytes);
}

// Above what a bucket takes in one part.
TEST_P(OriginContractTest, PublishesLargeObjectsOnceAndWhole) {
  const std::string bytes = bytes_of((33 << 20) + 12'345);
  const Content content = Content::of_bytes(bytes);

  ASSERT_TRUE(origin().publish(data_name(content), content, soon()).ok());
  EXPECT_TRUE(other().publish(data_name(content), content, soon()).ok());
  const Result<std::string> got = read_whole(other(), data_name(content), 64 << 20, soon());
  ASSERT_TRUE(got.ok()) << got.error().message();
  EXPECT_TRUE(*got == bytes);
}

TEST_P(OriginContractTest, OfManyWritersOneWinsWithItsBytes) {
  const ObjectName name{ObjectKind::kManifest, std::string(64, '5')};
  constexpr int kWriters = 8;
  std::vector<ErrorCode> outcomes(kWriters);
  std::vector<std::thread> threads;
  for (int i = 0; i < kWriters; ++i)
    threads.emplace_back([&, i] {
      const Result<void> done = (i % 2 ? origin() : other()).publish(name, Content::of_bytes("writer " + std::to_string(i)), soon());
      outcomes[i] = done.ok() ? ErrorCode{} : done.error().code();
    });
  for (std::thread& thread : threads) thread.join();

  const std::string kept = read_whole(origin(), name, 100, soon()).value();
  int winners = 0;
  for (int i = 0; i < kWriters; ++i) {
    if (outcomes[i] == ErrorCode{}) {
      ++winners;
      EXPECT_EQ(kept, "writer " + std::to_string(i));
    } else {
      EXPECT_EQ(outcomes[i], ErrorCode::kConflict) << i;
    }
  }
  EXPECT_EQ(winners, 1);
}

TEST_P(OriginContractTest, ManyThreadsReadOneObject) {
  const std::string bytes = bytes_of(1 << 20);
  const std::unique_ptr<Object> object = origin().open(put(bytes), soon()).value();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      for (std::size_t at = i * 4096; at + 65'536 <= bytes.size(); at += 65'536) {
        const Result<Buffer> got = object->read(at, 65'536, soon());
        ASSERT_TRUE(got.ok()) << got.error().message();
        ASSERT_EQ(got->view(), std::string_view(bytes).substr(at, 65'536));
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_P(OriginContractTest, ListsByPathInPages) {
  std::set<std::string> expected;
  for (int i = 0; i < 23; ++i) expected.insert(put("object " + std::to_string(i)).path());

  std::vector<std::string> listed;
  ObjectList page{.complete = false};
  while (!page.complete) {
    Result<ObjectList> next = origin().list(listed.empty() ? "" : listed.back(), 7, soon());
    ASSERT_TRUE(next.ok()) << next.error().message();
    page = std::move(next).value();
    ASSERT_LE(page.names.size(), 7U);
    ASSERT_TRUE(page.complete || !page.names.empty());
    for (const ObjectName& name : page.names) listed.push_back(name.path());
  }

  EXPECT_EQ(listed, std::vector<std::string>(expected.begin(), expected.end()));
}

TEST_P(OriginContractTest, WhatIsRemovedIsGoneForBoth) {
  const ObjectName name = put("to be removed");

  ASSERT_TRUE(origin().remove(name, soon()).ok());

  EXPECT_EQ(origin().open(name, soon()).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(other().open(name, soon()).error().code(), ErrorCode::kNotFound);
  EXPECT_TRUE(origin().list("", 10, soon()).value().names.empty());
}

TEST_P(OriginContractTest, AnObjectThatWasPutInItsPlaceIsNotTakenForIt) {
  const ObjectName name = put("the right bytes");
  fixture_->replace(name, "the wrong bytes");

  EXPECT_EQ(read_whole(other(), name, 100, soon()).error().code(), ErrorCode::kDataFault);
  EXPECT_EQ(origin().publish(name, Content::of_bytes("the right bytes"), soon()).error().code(), ErrorCode::kConflict);
}

INSTANTIATE_TEST_SUITE_P(Adapters, OriginContractTest, testing::ValuesIn(origin_cases()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace dsec::origin
