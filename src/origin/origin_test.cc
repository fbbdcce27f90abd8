// Names, chunk indexes, manifests and checked reading; the adapters are held to
// the port by tests/contract/origin_contract_test.cc.
#include <gtest/gtest.h>

#include "model/builder_key.h"
#include "origin/chunk_reader.h"
#include "origin/manifest.h"
#include "origin/memory_origin.h"

namespace dsec::origin {
namespace {

constexpr std::size_t kChunk = ChunkIndex::kChunkBytes;

Deadline soon() { return Deadline::in(std::chrono::seconds(10)); }

std::string bytes_of(std::size_t size) {
  std::string out(size, '\0');
  std::uint32_t state = 7;
  for (char& byte : out) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return out;
}

ObjectName data_name(const Content& content) { return {ObjectKind::kData, content.hex()}; }

TEST(ObjectNameTest, EveryKindComesBackFromItsPath) {
  for (const ObjectKind kind : {ObjectKind::kData, ObjectKind::kMetadata, ObjectKind::kIndex, ObjectKind::kManifest, ObjectKind::kLease, ObjectKind::kCondemned,
                                ObjectKind::kDeleting, ObjectKind::kTrace, ObjectKind::kPackedData, ObjectKind::kPackedMetadata}) {
    const ObjectName name{kind, std::string(62, 'a') + "09"};

    const Result<ObjectName> parsed = parse_object_path(name.path());

    ASSERT_TRUE(parsed.ok()) << parsed.error().message();
    EXPECT_EQ(*parsed, name);
  }
}

TEST(ObjectNameTest, RefusesWhatIsNoObjectsPath) {
  const std::string hex(64, 'a');
  for (const std::string& path : {std::string(), "ab/" + hex + ".data", "aa/" + hex, "aa/" + hex + ".exe", "aa/" + hex.substr(1) + ".data", "aa/../" + hex + ".data",
                                  "aa/" + std::string(64, 'A') + ".data", "/aa/" + hex + ".data"})
    EXPECT_EQ(parse_object_path(path).error().code(), ErrorCode::kInvalidArgument) << path;
}

TEST(ChunkIndexTest, AcceptsItsOwnChunksAndNoOthers) {
  const std::string bytes = bytes_of(2 * kChunk + 100);

  const Result<ChunkIndex> index = ChunkIndex::of(Content::of_bytes(bytes));

  ASSERT_TRUE(index.ok()) << index.error().message();
  ASSERT_EQ(index->chunks(), 3U);
  EXPECT_TRUE(index->fits(0, std::string_view(bytes).substr(0, kChunk)));
  EXPECT_TRUE(index->fits(2, std::string_view(bytes).substr(2 * kChunk)));
  EXPECT_FALSE(index->fits(1, std::string_view(bytes).substr(0, kChunk))) << "another chunk";
  EXPECT_FALSE(index->fits(2, std::string_view(bytes).substr(2 * kChunk, 99))) << "a short one";
  EXPECT_FALSE(index->fits(2, bytes.substr(2 * kChunk) + "x")) << "a long one";
}

TEST(ChunkIndexTest, ComesBackFromItsBytesAndFromNoOthers) {
  const ChunkIndex index = ChunkIndex::of(Content::of_bytes(bytes_of(kChunk + 1))).value();
  const std::string bytes = index.bytes();

  const Result<ChunkIndex> parsed = ChunkIndex::parse(bytes);

  ASSERT_TRUE(parsed.ok()) << parsed.error().message();
  EXPECT_EQ(parsed->bytes(), bytes);
  EXPECT_EQ(bytes.size(), ChunkIndex::bytes_for(kChunk + 1));
  for (std::size_t length = 0; length < bytes.size(); ++length) EXPECT_EQ(ChunkIndex::parse(bytes.substr(0, length)).error().code(), ErrorCode::kDataFault) << length;
  // The low bytes of the size may change within a chunk; the index's own digest binds them.
  for (const std::size_t at : {0, 7, 8, 11, 12, 15, 18, 23}) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x80);
    EXPECT_FALSE(ChunkIndex::parse(changed).ok()) << "byte " << at;
  }
}

TEST(ChunkIndexTest, OfNothingHasNoChunks) {
  const Result<ChunkIndex> index = ChunkIndex::of(Content::of_bytes(""));

  ASSERT_TRUE(index.ok());
  EXPECT_EQ(index->chunks(), 0U);
  EXPECT_TRUE(ChunkIndex::parse(index->bytes()).ok());
}

struct Stored {
  MemoryOrigin origin;
  std::string bytes = bytes_of(3 * kChunk + 4096);
  ObjectName name = data_name(Content::of_bytes(bytes));
  ChunkIndex index = ChunkIndex::of(Content::of_bytes(bytes)).value();
  Stored() { EXPECT_TRUE(origin.publish(name, Content::of_bytes(bytes), soon()).ok()); }
};

TEST(ChunkReaderTest, ReadsOneChunkAndManyByteForByte) {
  Stored stored;
  ChunkReader reader(stored.origin, stored.name, stored.index);

  for (std::uint64_t first = 0; first < 4; ++first)
    for (std::uint64_t count = 1; first + count <= 4; ++count) {
      const Result<Buffer> got = reader.read(first, count, soon());
      ASSERT_TRUE(got.ok()) << got.error().message();
      EXPECT_EQ(got->view(), std::string_view(stored.bytes).substr(first * kChunk, count * kChunk)) << first << "+" << count;
    }
  EXPECT_EQ(reader.read(4, 1, soon()).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(reader.read(3, 2, soon()).error().code(), ErrorCode::kInvalidArgument);
}

TEST(ChunkReaderTest, AWrongByteIsAnErrorForItsChunkAlone) {
  Stored stored;
  std::string changed = stored.bytes;
  changed[kChunk + 5] = static_cast<char>(changed[kChunk + 5] + 1);
  stored.origin.replace(stored.name, changed);
  ChunkReader reader(stored.origin, stored.name, stored.index);

  EXPECT_EQ(reader.read(1, 1, soon()).error().code(), ErrorCode::kDataFault);
  EXPECT_EQ(reader.read(0, 4, soon()).error().code(), ErrorCode::kDataFault);
  EXPECT_TRUE(reader.read(2, 2, soon()).ok());
}

TEST(ChunkReaderTest, AnObjectOfAnotherSizeIsAnError) {
  for (const int change : {-1, 1}) {
    Stored stored;
    std::string changed = stored.bytes;
    changed.resize(changed.size() + change);
    stored.origin.replace(stored.name, changed);
    ChunkReader reader(stored.origin, stored.name, stored.index);

    EXPECT_EQ(reader.read(0, 1, soon()).error().code(), ErrorCode::kDataFault) << change;
  }
}

TEST(ChunkReaderTest, AnObjectThatIsMissingIsNotFound) {
  Stored stored;
  ASSERT_TRUE(stored.origin.remove(stored.name, soon()).ok());
  ChunkReader reader(stored.origin, stored.name, stored.index);

  EXPECT_EQ(reader.read(0, 1, soon()).error().code(), ErrorCode::kNotFound);
}

TEST(ChunkReaderTest, SaysThatNoTimeIsLeft) {
  Stored stored;
  ChunkReader reader(stored.origin, stored.name, stored.index);

  EXPECT_EQ(reader.read(0, 1, Deadline::in(Duration::zero())).error().code(), ErrorCode::kDeadlineExceeded);
}

TEST(ReadWholeTest, RefusesBytesThatTheNameDoesNotNameAndTooMany) {
  Stored stored;

  EXPECT_EQ(read_whole(stored.origin, stored.name, stored.bytes.size(), soon()).value(), stored.bytes);
  EXPECT_EQ(read_whole(stored.origin, stored.name, stored.bytes.size() - 1, soon()).error().code(), ErrorCode::kDataFault);
  stored.origin.replace(stored.name, std::string(stored.bytes.size(), 'x'));
  EXPECT_EQ(read_whole(stored.origin, stored.name, stored.bytes.size(), soon()).error().code(), ErrorCode::kDataFault);
}

Manifest some_manifest(const std::string& hex) {
  Manifest out{.metadata_bytes = 8192, .data = {{.hex = std::string(64, 'b'), .bytes = 4096, .index_hex = std::string(64, 'c')}}};
  out.record.digest = "sha256:" + hex;
  out.record.kind = model::LayerKind::kToolkit;
  out.record.config.env["PATH"] = "/bin";
  return out;
}

TEST(ManifestTest, ComesBackFromItsText) {
  const std::string hex(64, 'a');
  const Manifest manifest = some_manifest(hex);

  const Result<Manifest> parsed = parse_manifest(to_text(manifest), hex);

  ASSERT_TRUE(parsed.ok()) << parsed.error().message();
  EXPECT_EQ(*parsed, manifest);
}

TEST(ManifestTest, IsTakenFromTrustedBuildersOnly) {
  const std::string hex(64, 'a');
  const std::string ours = model::make_builder_key();
  const std::string theirs = model::make_builder_key();
  const std::vector<std::string> trusted = {model::public_builder_key(theirs).value(), model::public_builder_key(ours).value()};
  std::string sealed = seal_manifest(some_manifest(hex), ours).value();

  EXPECT_EQ(unseal_manifest(sealed, hex, trusted).value(), some_manifest(hex));
  EXPECT_EQ(unseal_manifest(sealed, hex, {trusted[0]}).error().code(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(unseal_manifest(sealed, hex, {}).error().code(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(unseal_manifest("{}", hex, trusted).error().code(), ErrorCode::kDataFault);
  sealed.back() = ' ';
  EXPECT_EQ(unseal_manifest(sealed, hex, trusted).error().code(), ErrorCode::kPermissionDenied);
}

TEST(ManifestTest, RefusesAnotherLayersAnotherFormAndAnythingElse) {
  const std::string text = to_text(some_manifest(std::string(64, 'a')));

  EXPECT_EQ(parse_manifest(text, std::string(64, 'b')).error().code(), ErrorCode::kDataFault);
  for (const std::string& wrong : {std::string(), std::string("{}"), std::string("[]"), std::string("{\"version\":2") + text.substr(12), text.substr(0, text.size() - 1),
                                   std::string("{\"more\":1,") + text.substr(1)})
    EXPECT_EQ(parse_manifest(wrong, std::string(64, 'a')).error().code(), ErrorCode::kDataFault) << wrong;
}

}  // namespace
}  // namespace dsec::origin
