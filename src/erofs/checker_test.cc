#include "erofs/checker.h"

#include <gtest/gtest.h>

#include "erofs/hand_made_image.h"

namespace dsec::erofs {
namespace {

using test::HandMadeImage;
using test::get;
using test::put;
constexpr auto kRoot = HandMadeImage::kRoot;

Verdict check(const std::string& metadata, const std::vector<std::uint64_t>& device_bytes = {}, const CheckLimits& limits = {}) {
  return check_image(std::make_unique<MemorySource>(metadata), device_bytes, limits).value();
}

// The verdict about an image of which one thing was changed; the checksum is right again.
template <typename Change>
Verdict check_changed(const HandMadeImage& image, Change change) {
  std::string metadata = image.metadata();
  change(metadata);
  test::fix_checksum(metadata);
  return check(metadata);
}

void expect_refused(const Verdict& verdict, const std::string& path, const std::string& part) {
  ASSERT_FALSE(verdict.sound());
  EXPECT_EQ(verdict.problem->path, path) << verdict.problem->text();
  EXPECT_NE(verdict.problem->what.find(part), std::string::npos) << verdict.problem->text();
}

template <typename T>
void change_inode(std::string& metadata, std::size_t offset, T Inode::*field, T value) {
  Inode inode = get<Inode>(metadata, offset);
  inode.*field = value;
  put(metadata, offset, inode);
}

TEST(CheckerTest, TakesAnImageWithOneOfEverything) {
  const HandMadeImage image = test::rich_image();

  const Verdict verdict = check(image.metadata(), {image.data().size()});

  ASSERT_TRUE(verdict.sound()) << verdict.problem->text();
  EXPECT_EQ(verdict.facts.directories, 4u);
  EXPECT_EQ(verdict.facts.whiteouts, 1u);
  EXPECT_EQ(verdict.facts.capability_files, 1u);
  EXPECT_EQ(verdict.facts.content_bytes, 11 + 9000 + 9000 + 4200 + 16384 + 170'000 + 9u);
}

TEST(CheckerTest, RefusesEveryFeatureThatTheWriterDoesNotUse) {
  const HandMadeImage image = test::rich_image();
  const Superblock ours = get<Superblock>(image.metadata(), kSuperblockOffset);
  const auto refused = [&](auto change) {
    Superblock changed = ours;
    change(changed);
    return !check_changed(image, [&](std::string& metadata) { put(metadata, kSuperblockOffset, changed); }).sound();
  };

  for (int bit = 0; bit < 32; ++bit) {
    if (bit != 1) EXPECT_TRUE(refused([&](Superblock& s) { s.compatible_features ^= 1U << bit; })) << bit;
    EXPECT_TRUE(refused([&](Superblock& s) { s.incompatible_features ^= 1U << bit; })) << bit;
    EXPECT_TRUE(refused([&](Superblock& s) { s.blocks ^= 1U << bit; })) << bit;
  }
  EXPECT_TRUE(refused([](Superblock& s) { s.block_bits = 9; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.root_nid++; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.inodes++; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.metadata_block = 1; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.shared_attributes_block = 1; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.extra_devices = 17; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.extra_devices = 0; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.device_table_slot = 60'000; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.packed_nid = 1; }));
  EXPECT_TRUE(refused([](Superblock& s) { s.reserved[3] = 1; }));
}

TEST(CheckerTest, RefusesAWrongChecksum) {
  std::string metadata = test::rich_image().metadata();
  metadata[kSuperblockOffset + offsetof(Superblock, uuid)] ^= 1;

  expect_refused(check(metadata), "", "checksum");
}

TEST(CheckerTest, RefusesADeviceThatIsNotWhatTheTableSays) {
  const HandMadeImage image = test::rich_image();
  const std::size_t table = 1280;
  const auto with_slot = [&](auto change) {
    return check_changed(image, [&](std::string& metadata) {
      DeviceSlot slot = get<DeviceSlot>(metadata, table);
      change(slot);
      put(metadata, table, slot);
    });
  };

  expect_refused(check(image.metadata(), {image.data().size() + 1}), "", "another size");
  expect_refused(check(image.metadata(), {1, 2}), "", "another size");
  expect_refused(with_slot([](DeviceSlot& slot) { slot.tag[3] = 'A'; }), "", "tag");
  expect_refused(with_slot([](DeviceSlot& slot) { slot.unified_address = 0; }), "", "lies where the metadata does");
  expect_refused(with_slot([](DeviceSlot& slot) { slot.unified_address = kNoBlock - 1; }), "", "beyond all addresses");
  EXPECT_FALSE(with_slot([](DeviceSlot& slot) { slot.blocks--; }).sound());
  EXPECT_FALSE(with_slot([](DeviceSlot& slot) { slot.unified_address++; }).sound());
}

TEST(CheckerTest, RefusesADirectoryThatIsReachedTwice) {
  HandMadeImage image;
  const auto a = image.directory(kRoot, "a");
  const auto b = image.directory(a, "b");
  image.build();
  const auto point_b_at = [&](std::size_t offset) {
    return check_changed(image, [&](std::string& metadata) { put(metadata, image.body_of(a) + 2 * sizeof(DirectoryEntry), std::uint64_t{offset / kSlotBytes}); });
  };

  expect_refused(point_b_at(image.offset_of(kRoot)), "/a/b", "second name");
  expect_refused(point_b_at(image.offset_of(a)), "/a/b", "second name");
  EXPECT_TRUE(point_b_at(image.offset_of(b)).sound());
}

TEST(CheckerTest, RefusesADotOrParentThatIsAnother) {
  HandMadeImage image;
  const auto a = image.directory(kRoot, "a");
  image.build();
  for (const std::size_t entry : {0, 1}) {
    const std::uint64_t other = (entry == 0 ? image.offset_of(kRoot) : image.offset_of(a)) / kSlotBytes;

    const Verdict verdict = check_changed(image, [&](std::string& metadata) { put(metadata, image.body_of(a) + entry * sizeof(DirectoryEntry), other); });

    expect_refused(verdict, entry == 0 ? "/a/." : "/a/..", "another inode");
  }
}

TEST(CheckerTest, RefusesAnEntryWhoseTypeIsNotItsInodes) {
  HandMadeImage image;
  image.inline_file(kRoot, "f", "x");
  image.build();

  const Verdict verdict = check_changed(image, [&](std::string& metadata) { metadata[image.body_of(kRoot) + 2 * sizeof(DirectoryEntry) + offsetof(DirectoryEntry, type)] = 7; });

  expect_refused(verdict, "/f", "type");
}

TEST(CheckerTest, RefusesNamesThatNoDirectoryMayHave) {
  HandMadeImage image;
  image.inline_file(kRoot, "aa", "x");
  image.inline_file(kRoot, "bb", "y");
  image.build();
  const std::size_t names = image.body_of(kRoot) + 4 * sizeof(DirectoryEntry) + 3;  // behind "." and ".."
  ASSERT_EQ(image.metadata().substr(names, 4), "aabb");

  for (const std::string& wrong : {std::string("a/bb"), std::string("a\0bb", 4), std::string("bbaa"), std::string("bbbb"), std::string(".\0bb", 4)})
    EXPECT_FALSE(check_changed(image, [&](std::string& metadata) { metadata.replace(names, 4, wrong); }).sound()) << wrong;
}

TEST(CheckerTest, RefusesALinkCountThatIsNotTheNumberOfNames) {
  HandMadeImage image;
  const auto directory = image.directory(kRoot, "d");
  const auto once = image.inline_file(directory, "once", "x");
  const auto twice = image.inline_file(directory, "twice", "y");
  image.hard_link(kRoot, "again", twice);
  image.build();

  for (const auto& [id, links] : std::vector<std::pair<HandMadeImage::Id, std::uint32_t>>{
           {directory, 3}, {kRoot, 2}, {once, 2}, {once, 0}, {twice, 1}, {twice, 3}}) {
    const Verdict verdict = check_changed(image, [&](std::string& metadata) { change_inode(metadata, image.offset_of(id), &Inode::links, links); });
    EXPECT_FALSE(verdict.sound()) << id << " " << links;
  }
}

TEST(CheckerTest, RefusesFileKindsThatNoLayerMayHave) {
  for (const auto& [mode, device] : std::vector<std::pair<std::uint16_t, std::uint32_t>>{
           {0020600, 0x0103}, {0060600, 0}, {0060600, 0x0801}, {0140755, 0}, {0010600, 7}}) {
    HandMadeImage image;
    image.special(kRoot, "x", mode, device);
    image.build();

    EXPECT_FALSE(check(image.metadata()).sound()) << std::oct << mode;
  }
}

TEST(CheckerTest, TakesAttributesByTheAllowListOnly) {
  struct Case {
    std::uint8_t prefix;
    std::string name;
    std::string value;
    bool on_directory;
    bool allowed;
  };
  for (const Case& c : std::vector<Case>{{kUserPrefix, "x", "1", false, true}, {kUserPrefix, "overlay.opaque", "y", true, false},
                                         {kSecurityPrefix, "capability", test::capability(), false, true}, {kSecurityPrefix, "capability", "x", false, false},
                                         {kSecurityPrefix, "selinux", "x", false, false}, {kSecurityPrefix, "capability", std::string(20, '\1'), false, false},
                                         {kTrustedPrefix, "overlay.opaque", "y", true, true}, {kTrustedPrefix, "overlay.opaque", "x", true, false},
                                         {kTrustedPrefix, "overlay.opaque", "y", false, false}, {kTrustedPrefix, "overlay.origin", "", true, true},
                                         {kTrustedPrefix, "overlay.origin", "handle", true, false}, {kTrustedPrefix, "overlay.redirect", "/etc", true, false},
                                         {kTrustedPrefix, "overlay.metacopy", "", false, false}, {kUserPrefix, "", "x", false, false},
                                         {2, "", "acl", false, false}, {0x81, "x", "1", false, false}}) {
    HandMadeImage image;
    const auto node = c.on_directory ? image.directory(kRoot, "d") : image.inline_file(kRoot, "f", "x");
    image.attribute(node, c.prefix, c.name, c.value);
    image.build();

    EXPECT_EQ(check(image.metadata()).sound(), c.allowed) << int{c.prefix} << " " << c.name;
  }
}

TEST(CheckerTest, RefusesAnAttributeThatOccursTwice) {
  HandMadeImage image;
  const auto file = image.inline_file(kRoot, "f", "x");
  image.attribute(file, kUserPrefix, "a", "1");
  image.attribute(file, kUserPrefix, "a", "2");
  image.build();

  expect_refused(check(image.metadata()), "/f", "twice");
}

TEST(CheckerTest, RefusesContentThatIsPartlyAnothers) {
  HandMadeImage image;
  const auto a = image.flat_file(kRoot, "a", test::pattern(10'000, 1));
  const auto b = image.flat_file(kRoot, "b", test::pattern(10'000, 2));
  image.build();
  const auto address = get<Inode>(image.metadata(), image.offset_of(a)).address;
  const auto move_b = [&](std::uint32_t to) {
    return check_changed(image, [&](std::string& metadata) { change_inode(metadata, image.offset_of(b), &Inode::address, to); });
  };

  EXPECT_TRUE(move_b(address).sound());
  expect_refused(move_b(address + 1), "/", "one place");
  EXPECT_FALSE(move_b(address + 5).sound()) << "beyond the data file";
  EXPECT_FALSE(move_b(0).sound()) << "the superblock as content";
  EXPECT_FALSE(move_b(1).sound()) << "the inodes as content";
  EXPECT_FALSE(move_b(kNoBlock).sound());
}

TEST(CheckerTest, RefusesAByteThatBelongsToNothing) {
  const HandMadeImage image = test::rich_image();
  for (const std::size_t offset : {std::size_t{0}, std::size_t{1023}, std::size_t{1200}, std::size_t{2000}, image.metadata().size() - 1}) {
    const Verdict verdict = check_changed(image, [&](std::string& metadata) { metadata[offset] = 1; });

    ASSERT_FALSE(verdict.sound()) << offset;
    EXPECT_EQ(verdict.problem->offset, offset) << verdict.problem->text();
  }
}

TEST(CheckerTest, RefusesABrokenIndexOfCompressedContent) {
  HandMadeImage image;
  const auto file = image.compressed_file(kRoot, "f", std::string(100'000, 'a') + test::pattern(70'000, 4));
  image.build();
  const std::size_t clusters = image.body_of(file) + sizeof(CompressedHeader) + kCompressedIndexGap;
  const auto with_cluster = [&](std::size_t i, auto change) {
    return check_changed(image, [&](std::string& metadata) {
      ClusterIndex index = get<ClusterIndex>(metadata, clusters + i * sizeof index);
      change(index);
      put(metadata, clusters + i * sizeof index, index);
    });
  };

  ASSERT_TRUE(with_cluster(0, [](ClusterIndex&) {}).sound());
  EXPECT_FALSE(with_cluster(0, [](ClusterIndex& i) { i.place++; }).sound());
  EXPECT_FALSE(with_cluster(0, [](ClusterIndex& i) { i.advice = 2; }).sound());
  EXPECT_FALSE(with_cluster(0, [](ClusterIndex& i) { i.advice = 3; }).sound());
  EXPECT_FALSE(with_cluster(0, [](ClusterIndex& i) { i.offset = 1; }).sound());
  EXPECT_FALSE(with_cluster(1, [](ClusterIndex& i) { i.place += 1; }).sound());
  EXPECT_FALSE(with_cluster(1, [](ClusterIndex& i) { i.place &= ~std::uint32_t{kPieceBlocks}; }).sound());
  EXPECT_FALSE(with_cluster(2, [](ClusterIndex& i) { i.place += 1; }).sound());
  EXPECT_FALSE(with_cluster(2, [](ClusterIndex& i) { i.place += 1 << 16; }).sound());
  EXPECT_FALSE(with_cluster(16, [](ClusterIndex& i) { i.place--; }).sound());
  EXPECT_FALSE(with_cluster(30, [](ClusterIndex& i) { i.advice = 0; }).sound());
  EXPECT_FALSE(check_changed(image, [&](std::string& m) { change_inode(m, image.offset_of(file), &Inode::size, std::uint64_t{1} << 60); }).sound());
}

TEST(CheckerTest, KeepsItsLimits) {
  const HandMadeImage image = test::rich_image();

  EXPECT_FALSE(check(image.metadata(), {}, {.metadata_bytes = 4096}).sound());
  EXPECT_FALSE(check(image.metadata(), {}, {.inodes = 20}).sound());
  EXPECT_FALSE(check(image.metadata(), {}, {.file_bytes = 9000}).sound());
}

TEST(CheckerTest, AsksForBytesThatCannotBeReadInsteadOfBlamingTheImage) {
  class Failing final : public Source {
   public:
    std::uint64_t size() const override { return 8192; }
    Result<void> read(std::uint64_t, std::span<char>) override { return errno_error("read", EIO); }
  };

  const Result<Verdict> verdict = check_image(std::make_unique<Failing>());

  ASSERT_FALSE(verdict.ok());
  EXPECT_EQ(verdict.error().error_number(), EIO);
}

}  // namespace
}  // namespace dsec::erofs
