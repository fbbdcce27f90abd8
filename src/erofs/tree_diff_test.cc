#include "erofs/tree_diff.h"

#include <gtest/gtest.h>

#include "erofs/hand_made_image.h"

namespace dsec::erofs {
namespace {

using test::HandMadeImage;
using test::pattern;
constexpr auto kRoot = HandMadeImage::kRoot;

Reader open(const HandMadeImage& image) {
  std::vector<std::unique_ptr<Source>> devices;
  devices.push_back(std::make_unique<MemorySource>(image.data()));
  return Reader::open(std::make_unique<MemorySource>(image.metadata()), std::move(devices)).value();
}

std::vector<std::string> paths(TreeWalk& walk, std::size_t limit = 1000) {
  std::vector<std::string> found;
  while (found.size() < limit) {
    const std::optional<TreeWalk::Entry> entry = walk.next().value();
    if (!entry) break;
    found.push_back(entry->path);
  }
  return found;
}

std::vector<std::string> differences(const HandMadeImage& a, const HandMadeImage& b, std::size_t entries, std::uint64_t bytes) {
  Reader before = open(a);
  Reader after = open(b);
  TreeDiff diff = TreeDiff::begin(before, after).value();
  std::vector<std::string> lines;
  while (!diff.done()) {
    const std::vector<Difference> found = diff.next(entries, bytes).value();
    for (const Difference& difference : found) {
      std::string line = !difference.before ? "+ " : !difference.after ? "- " : "! ";
      line += difference.path;
      for (const std::string_view what : difference.what) line += " " + std::string(what);
      lines.push_back(line);
    }
  }
  return lines;
}

HandMadeImage walk_image() {
  HandMadeImage image;
  const auto a = image.directory(kRoot, "a");
  image.empty_file(kRoot, "a.txt");
  image.empty_file(a, "x");
  image.empty_file(image.directory(a, "b"), "y");
  image.build();
  return image;
}

TEST(TreeWalkTest, GivesADirectoryBeforeWhatIsInIt) {
  const HandMadeImage image = walk_image();
  Reader reader = open(image);
  TreeWalk all = TreeWalk::begin(reader, "/", Depth::kAll).value();
  TreeWalk children = TreeWalk::begin(reader, "//a/.", Depth::kChildren).value();

  EXPECT_EQ(paths(all), (std::vector<std::string>{"/a", "/a/b", "/a/b/y", "/a/x", "/a.txt"}));
  EXPECT_EQ(paths(children), (std::vector<std::string>{"/a/b", "/a/x"}));
  EXPECT_EQ(TreeWalk::begin(reader, "/nothing", Depth::kAll).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(TreeWalk::begin(reader, "/a.txt", Depth::kAll).error().code(), ErrorCode::kInvalidArgument);
}

TEST(TreeWalkTest, GoesOnBehindEachPathAsIfItHadNotStopped) {
  const HandMadeImage image = test::rich_image();
  Reader reader = open(image);
  for (const Depth depth : {Depth::kAll, Depth::kChildren}) {
    TreeWalk whole = TreeWalk::begin(reader, "/", depth).value();
    const std::vector<std::string> all = paths(whole);
    for (std::size_t i = 0; i < all.size(); ++i) {
      TreeWalk rest = TreeWalk::begin(reader, "/", depth).value();
      ASSERT_TRUE(rest.skip_past(all[i]).ok());
      EXPECT_EQ(paths(rest), std::vector<std::string>(all.begin() + static_cast<std::ptrdiff_t>(i) + 1, all.end())) << all[i];
    }
  }
  TreeWalk etc = TreeWalk::begin(reader, "/etc", Depth::kAll).value();
  EXPECT_FALSE(etc.skip_past("/many/x").ok());
}

TEST(TreeWalkTest, EndsInACycleWithADataFault) {
  HandMadeImage image;
  const auto a = image.directory(kRoot, "a");
  image.directory(a, "b");
  image.build();
  std::string metadata = image.metadata();
  test::put(metadata, image.body_of(a) + 2 * sizeof(DirectoryEntry), std::uint64_t{image.offset_of(kRoot) / kSlotBytes});
  Reader reader = Reader::open(std::make_unique<MemorySource>(metadata)).value();
  TreeWalk walk = TreeWalk::begin(reader, "/", Depth::kAll).value();

  Result<std::optional<TreeWalk::Entry>> entry = walk.next();
  for (int i = 0; i < 10'000 && entry.ok(); ++i) entry = walk.next();

  ASSERT_FALSE(entry.ok());
  EXPECT_EQ(entry.error().code(), ErrorCode::kDataFault);
}

TEST(TreeDiffTest, TellsWhatWasAddedRemovedAndChanged) {
  HandMadeImage before;
  const auto gone = before.directory(kRoot, "gone");
  before.empty_file(gone, "too");
  before.inline_file(kRoot, "same", "x");
  before.inline_file(kRoot, "content", "x");
  before.inline_file(kRoot, "size", "x");
  before.symlink(kRoot, "target", "x");
  before.empty_file(kRoot, "type");
  before.attribute(before.empty_file(kRoot, "attributes"), kUserPrefix, "a", "1");
  before.flat_file(kRoot, "layout", pattern(500'000, 1));
  before.build();
  HandMadeImage after;
  after.inline_file(kRoot, "same", "x");
  after.inline_file(kRoot, "content", "y");
  after.inline_file(kRoot, "size", "xy");
  after.symlink(kRoot, "target", "y");
  after.empty_file(after.directory(kRoot, "type"), "new");
  after.attribute(after.empty_file(kRoot, "attributes"), kUserPrefix, "a", "2");
  after.compressed_file(kRoot, "layout", pattern(500'000, 1));
  after.build();
  const std::vector<std::string> expected = {"! /attributes attributes", "! /content content", "- /gone",         "- /gone/too", "! /size size content",
                                             "! /target target",         "! /type type",       "+ /type/new"};

  EXPECT_EQ(differences(before, after, 1000, UINT64_MAX), expected);
  EXPECT_EQ(differences(before, after, 1, UINT64_MAX), expected) << "one entry a call";
  EXPECT_EQ(differences(before, after, 1000, 1), expected) << "one piece of content a call";
}

TEST(TreeDiffTest, FindsNothingBetweenAnImageAndItself) {
  const HandMadeImage image = test::rich_image();

  EXPECT_TRUE(differences(image, image, 1000, 1).empty());
}

}  // namespace
}  // namespace dsec::erofs
