// Data that a store keeps compressed: made, read, and lied about.
#include <gtest/gtest.h>
#include <zstd.h>

#include <set>

#include "origin/at_rest_origin.h"
#include "origin/chunk_reader.h"
#include "origin/memory_origin.h"
#include "origin/packed_object.h"

namespace dsec::origin {
namespace {

constexpr std::size_t kChunk = ChunkIndex::kChunkBytes;

Deadline soon() { return Deadline::in(std::chrono::seconds(20)); }

std::string noise(std::size_t size) {
  std::string out(size, '\0');
  std::uint32_t state = 3;
  for (char& byte : out) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return out;
}

// Text, then bytes that nothing makes smaller, then text.
std::string mixed(std::size_t size) {
  std::string out;
  while (out.size() < size) out += "line " + std::to_string(out.size()) + " of something\n";
  out.resize(size);
  if (size > 2 * kChunk) out.replace(kChunk, kChunk, noise(kChunk));
  return out;
}

std::string bytes_of(const Content& content) {
  std::string out(content.size(), '\0');
  EXPECT_TRUE(content.read(0, out.data(), out.size()).ok());
  return out;
}

std::string packed(const std::string& bytes) { return bytes_of(pack(Content::of_bytes(bytes), soon()).value()); }

Result<std::unique_ptr<Object>> opened(MemoryOrigin& store, const std::string& bytes) {
  const ObjectName name{ObjectKind::kPackedData, std::string(64, 'a')};
  store.replace(name, bytes);
  return open_packed(store.open(name, soon()).value(), soon());
}

TEST(PackedTest, EveryRangeComesBackAndTextTakesLessRoom) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kChunk - 1, kChunk, 3 * kChunk + 777}) {
    const std::string bytes = mixed(size);
    MemoryOrigin store;
    const std::string form = packed(bytes);

    const auto object = opened(store, form);

    ASSERT_TRUE(object.ok()) << object.error().message();
    ASSERT_EQ((*object)->size(), size);
    for (const auto& [offset, length] : std::vector<std::pair<std::size_t, std::size_t>>{{0, size}, {size / 2, size - size / 2}, {size / 3, size / 3}, {size, 0}}) {
      const auto got = (*object)->read(offset, length, soon());
      ASSERT_TRUE(got.ok()) << got.error().message();
      EXPECT_TRUE(got->view() == std::string_view(bytes).substr(offset, length)) << size << " " << offset;
    }
    if (size == 3 * kChunk + 777) EXPECT_LT(form.size(), kChunk * 3 / 2);
  }
}

TEST(PackedTest, NoChangedByteBecomesAWrongByte) {
  const std::string bytes = mixed(2 * kChunk + 3000);
  const std::string form = packed(bytes);
  const ChunkIndex index = ChunkIndex::of(Content::of_bytes(bytes)).value();
  const ObjectName name{ObjectKind::kData, Content::of_bytes(bytes).hex()};

  for (std::size_t at = 0; at < form.size(); at += at < 200 ? 1 : 997) {
    auto store = std::make_unique<MemoryOrigin>();
    std::string changed = form;
    changed[at] = static_cast<char>(changed[at] ^ 0x41);
    store->replace({ObjectKind::kPackedData, name.hex}, changed);
    AtRestOrigin origin(std::move(store), AtRest::kPlain);
    ChunkReader reader(origin, name, index, {.attempts = 1});
    for (std::uint64_t chunk = 0; chunk < index.chunks(); ++chunk) {
      const auto got = reader.read(chunk, 1, soon());
      if (got.ok()) EXPECT_TRUE(got->view() == std::string_view(bytes).substr(chunk * kChunk, index.size_of(chunk))) << at;
      else EXPECT_EQ(got.error().code(), ErrorCode::kDataFault) << at;
    }
  }
}

TEST(PackedTest, AFrameOfMoreThanItsChunkIsAnErrorAndTakesNoRoom) {
  const std::string zeros(64 * kChunk, '\0');
  std::string bomb(ZSTD_compressBound(zeros.size()), '\0');
  bomb.resize(ZSTD_compress(bomb.data(), bomb.size(), zeros.data(), zeros.size(), 3));
  ASSERT_LT(bomb.size(), kChunk);
  MemoryOrigin store;

  const auto object = opened(store, PackedTable(kChunk, {static_cast<std::uint32_t>(bomb.size())}).bytes() + bomb);

  ASSERT_TRUE(object.ok());
  EXPECT_EQ((*object)->read(0, kChunk, soon()).error().code(), ErrorCode::kDataFault);
}

TEST(PackedTest, ATableThatLiesIsRefusedBeforeAnythingIsMadeForIt) {
  const std::string form = packed(mixed(kChunk + 10));
  const auto with = [&](std::size_t at, std::uint64_t value, std::size_t width) {
    std::string changed = form;
    changed.replace(at, width, reinterpret_cast<const char*>(&value), width);
    MemoryOrigin store;
    const auto object = opened(store, changed);
    return object.ok() ? ErrorCode::kInternal : object.error().code();
  };

  EXPECT_EQ(with(16, 1ull << 62, 8), ErrorCode::kDataFault) << "a table of more than the object";
  EXPECT_EQ(with(16, 7ull << 40, 8), ErrorCode::kDataFault);
  EXPECT_EQ(with(24, 0, 4), ErrorCode::kDataFault) << "a frame of nothing";
  EXPECT_EQ(with(24, kChunk + 1, 4), ErrorCode::kDataFault) << "a frame longer than its chunk";
  EXPECT_EQ(with(28, 9, 4), ErrorCode::kDataFault) << "frames that are not all";
  MemoryOrigin store;
  for (const std::size_t length : {std::size_t{0}, std::size_t{23}, std::size_t{24}, std::size_t{31}, form.size() - 1})
    EXPECT_EQ(opened(store, form.substr(0, length)).error().code(), ErrorCode::kDataFault) << length;
  EXPECT_EQ(opened(store, form + "x").error().code(), ErrorCode::kDataFault);
}

struct TwoForms {
  explicit TwoForms(AtRest form) : origin(make(form)) {}
  std::unique_ptr<AtRestOrigin> make(AtRest form) {
    auto inner = std::make_unique<MemoryOrigin>();
    store = inner.get();
    return std::make_unique<AtRestOrigin>(std::move(inner), form);
  }
  bool has(ObjectKind kind, const std::string& hex) const { return store->open({kind, hex}, soon()).ok(); }
  MemoryOrigin* store = nullptr;
  std::unique_ptr<AtRestOrigin> origin;
};

TEST(AtRestOriginTest, StoresDataInItsFormAndNeverTwice) {
  const Content content = Content::of_bytes(mixed(3 * kChunk));
  for (const auto& [raw, packed_kind] : {std::pair(ObjectKind::kData, ObjectKind::kPackedData), std::pair(ObjectKind::kMetadata, ObjectKind::kPackedMetadata)}) {
    for (const AtRest form : {AtRest::kPlain, AtRest::kZstd}) {
      const ObjectName name{raw, content.hex()};
      const ObjectKind own = form == AtRest::kPlain ? raw : packed_kind;
      const ObjectKind foreign = form == AtRest::kPlain ? packed_kind : raw;
      TwoForms fresh(form), shared(form);
      shared.store->replace({foreign, name.hex}, form == AtRest::kPlain ? packed(bytes_of(content)) : bytes_of(content));

      ASSERT_TRUE(fresh.origin->publish(name, content, soon()).ok());
      ASSERT_TRUE(fresh.origin->publish(name, content, soon()).ok());
      ASSERT_TRUE(shared.origin->publish(name, content, soon()).ok());

      EXPECT_TRUE(fresh.has(own, name.hex) && !fresh.has(foreign, name.hex));
      EXPECT_TRUE(!shared.has(own, name.hex) && shared.has(foreign, name.hex)) << "the other form is there already";
      EXPECT_TRUE(shared.origin->open(name, soon()).value()->read(0, content.size(), soon()).value().view() == bytes_of(content));
    }
  }
}

TEST(AtRestOriginTest, EveryLevelIsReadTheSame) {
  std::string text;
  for (int i = 0; text.size() < 2 * kChunk; ++i) text += "line " + std::to_string(i * 7919 % 10'007) + " of a file\n";
  const Content content = Content::of_bytes(text);

  std::set<std::uint64_t> sizes;
  for (const int level : {1, kUsualLevel, kHighestLevel}) {
    const Content packed_content = pack(content, soon(), level).value();
    MemoryOrigin store;
    EXPECT_TRUE(opened(store, bytes_of(packed_content)).value()->read(0, text.size(), soon()).value().view() == text) << level;
    EXPECT_LT(packed_content.size(), text.size() / 4) << level;
    sizes.insert(packed_content.size());
  }
  EXPECT_EQ(sizes.size(), 3u) << "the level is followed";
}

TEST(AtRestOriginTest, OtherBytesBelowTheNameAreAConflictInBothForms) {
  const Content content = Content::of_bytes(mixed(1000));
  const ObjectName name{ObjectKind::kData, content.hex()};
  TwoForms plain(AtRest::kZstd), packed_form(AtRest::kPlain);
  plain.store->replace(name, "other");
  packed_form.store->replace({ObjectKind::kPackedData, name.hex}, packed("other"));

  EXPECT_EQ(plain.origin->publish(name, content, soon()).error().code(), ErrorCode::kConflict);
  EXPECT_EQ(packed_form.origin->publish(name, content, soon()).error().code(), ErrorCode::kConflict);
  EXPECT_EQ(plain.origin->publish({ObjectKind::kData, std::string(64, 'b')}, content, soon()).error().code(), ErrorCode::kInvalidArgument);
}

TEST(AtRestOriginTest, BothFormsAreOneObjectOfListsAndRemovals) {
  TwoForms both(AtRest::kZstd);
  const std::string hex(64, 'a');
  for (const ObjectKind kind : {ObjectKind::kData, ObjectKind::kPackedData, ObjectKind::kIndex, ObjectKind::kMetadata, ObjectKind::kPackedMetadata}) both.store->replace({kind, hex}, "x");
  both.store->replace({ObjectKind::kPackedData, std::string(64, 'b')}, "x");
  const std::vector<ObjectName> expected = {{ObjectKind::kData, hex}, {ObjectKind::kIndex, hex}, {ObjectKind::kMetadata, hex}, {ObjectKind::kData, std::string(64, 'b')}};

  for (const std::size_t limit : {1, 2, 3, 10}) {
    std::vector<ObjectName> seen;
    ObjectList page{.names = {}, .complete = false};
    while (!page.complete) {
      page = both.origin->list(seen.empty() ? "" : seen.back().path(), limit, soon()).value();
      ASSERT_LE(page.names.size(), limit);
      seen.insert(seen.end(), page.names.begin(), page.names.end());
      ASSERT_LE(seen.size(), expected.size());
    }
    EXPECT_EQ(seen, expected) << limit;
  }
  ASSERT_TRUE(both.origin->remove({ObjectKind::kData, hex}, soon()).ok());
  EXPECT_FALSE(both.has(ObjectKind::kData, hex) || both.has(ObjectKind::kPackedData, hex));
  ASSERT_TRUE(both.origin->remove({ObjectKind::kMetadata, hex}, soon()).ok());
  EXPECT_FALSE(both.has(ObjectKind::kMetadata, hex) || both.has(ObjectKind::kPackedMetadata, hex));
  EXPECT_TRUE(both.has(ObjectKind::kIndex, hex));
}

}  // namespace
}  // namespace dsec::origin
