#include "erofs/hot_layout.h"

#include <random>

#include "erofs/hand_made_image.h"
#include "erofs/layer_merge_fixture.h"

namespace dsec::erofs {
namespace {

using test::Image;
using test::LayerMergeTest;
using test::pattern;

constexpr std::uint64_t kMiB = 1 << 20;

class HotLayoutTest : public LayerMergeTest {
 protected:
  Result<HotCounts> lay_out(const Image& from, const std::vector<TouchedRun>& touched, Image& out, const HotLayoutOptions& options = {}, const std::vector<const Image*>& parts = {}) {
    Reader layer = reader(from, parts);
    out.writer = std::make_unique<Writer>(out.metadata.get(), out.data.get(), WriterOptions{});
    Result<HotCounts> counts = lay_out_by_touch(layer, touched, options, *out.writer);
    if (counts.ok()) out.finish();
    return counts;
  }
  // Where a byte of a file lies in the data file.
  static std::uint64_t data_offset(Reader& image, const std::string& path, std::uint64_t at) {
    const Extent extent = image.extent(image.lookup(path).value(), at).value();
    EXPECT_EQ(extent.source, 1u) << path;
    return extent.offset + (at - extent.at);
  }
  static TouchedRun touch(Reader& image, const std::string& path, std::uint64_t at, std::uint32_t blocks) {
    return {1, {static_cast<std::uint32_t>(data_offset(image, path, at) / kBlockBytes), blocks}};
  }
};

TEST_F(HotLayoutTest, PutsWhatWasReadFirstAndTogetherInItsOrder) {
  Image layer({});
  for (int i = 0; i < 8; i++) layer.file("small/" + std::to_string(i), pattern(20'480, i));
  layer.file("large", pattern(8 * kMiB, 9));
  layer.file("whole", pattern(kMiB, 10));
  layer.finish();
  Reader before = reader(layer);
  const std::vector<TouchedRun> touched = {touch(before, "/large", 5 * kMiB, 64), touch(before, "/small/6", 0, 1), touch(before, "/whole", 0, 250), touch(before, "/large", 0, 1)};

  Image out;
  const HotCounts counts = lay_out(layer, touched, out).value();

  Reader after = reader(out);
  EXPECT_EQ(contents(after), contents(before));
  EXPECT_EQ(data_offset(after, "/large", 5 * kMiB), 0u);
  EXPECT_EQ(data_offset(after, "/small/6", 0), 64 * 4096u);
  EXPECT_EQ(data_offset(after, "/whole", 0), (64 + 5) * 4096u);
  EXPECT_EQ(data_offset(after, "/large", 0), (64 + 5 + 256) * 4096u);
  EXPECT_EQ(counts.touched_bytes, (64 + 1 + 250 + 1) * 4096u);
  EXPECT_LE(counts.hot_bytes, counts.touched_bytes * 11 / 10 + 5 * 4096);
  EXPECT_EQ(counts.split_files, 1u);
  EXPECT_EQ(counts.data_bytes, out.written.data_bytes);
  EXPECT_EQ(out.written.data_bytes, layer.written.data_bytes);
  EXPECT_GE(data_offset(after, "/small/0", 0), counts.hot_bytes) << "cold, behind all that is hot";
  EXPECT_GE(data_offset(after, "/large", 7 * kMiB), counts.hot_bytes);
}

TEST_F(HotLayoutTest, KeepsEveryKindOfEntryAndEveryMark) {
  for (const Profile profile : {Profile::kPlain, Profile::kLz4}) {
    Image layer({.profile = profile});
    layer.directory("", {.mode = 0711, .uid = 3, .gid = 4, .mtime_seconds = 77});
    layer.directory("opaque", {.mode = 0750});
    ASSERT_TRUE(layer.writer->make_opaque("opaque").ok());
    layer.hide("opaque-not/gone");
    layer.link("link", "a/b");
    ASSERT_TRUE(layer.writer->make_fifo("fifo", {.mode = 0600}).ok());
    layer.file("capable", pattern(9'000, 1), {.mode = 04755, .uid = 70'000, .mtime_nanoseconds = 5, .attributes = {{"user.note", "x"}}});
    layer.file("text", std::string(3 * kMiB, 't'));
    layer.file("mixed", pattern(100'000, 2) + std::string(900'000, 'm'));
    layer.file("again", pattern(9'000, 1));
    layer.file("tiny", "y");
    layer.file("empty", "");
    ASSERT_TRUE(layer.writer->make_hard_link("other-name", "mixed").ok());
    ASSERT_TRUE(layer.writer->begin_file("holes", {.mode = 0644}, {.bytes = 9 * kMiB + 5, .sparse = true}).ok());
    for (int i = 0; i < 4; i++) {
      ASSERT_TRUE(layer.writer->skip(2 * kMiB).ok());
      ASSERT_TRUE(layer.writer->write(pattern(90'000, i)).ok());
    }
    ASSERT_TRUE(layer.writer->finish_file().ok());
    layer.finish();
    Reader before = reader(layer);

    Image out;
    ASSERT_TRUE(lay_out(layer, {touch(before, "/holes", 4 * kMiB + 98'304, 2), touch(before, "/mixed", 0, 1)}, out).ok());

    Reader after = reader(out);
    EXPECT_EQ(contents(after), contents(before));
    const StoredInode root_before = before.root().value();
    const StoredInode root_after = after.root().value();
    EXPECT_EQ(root_after.mode, root_before.mode);
    EXPECT_EQ(root_after.uid, 3u);
    EXPECT_EQ(root_after.seconds, 77);
    EXPECT_EQ(data_offset(after, "/holes", 4 * kMiB + 98'304), 0u);
  }
}

TEST_F(HotLayoutTest, KeepsCompressedFilesWhole) {
  Image layer({.profile = Profile::kLz4});
  std::string text;
  for (int i = 0; i < 400'000; i++) text += std::to_string(i * 7919 % 100'003) + "\n";
  layer.file("cold", pattern(kMiB, 1) + text);
  layer.file("touched", text);
  layer.file("hot", pattern(20'000, 3));
  layer.finish();
  Reader before = reader(layer);

  Image out;
  const HotCounts counts = lay_out(layer, {touch(before, "/touched", 0, 1), touch(before, "/hot", 0, 1)}, out).value();

  Reader after = reader(out);
  EXPECT_EQ(contents(after), contents(before));
  EXPECT_EQ(data_offset(after, "/hot", 0), 0u);
  EXPECT_EQ(data_offset(after, "/touched", 0), counts.hot_bytes);
  EXPECT_EQ(data_offset(after, "/cold", 0), counts.hot_bytes + counts.warm_bytes);
  EXPECT_EQ(counts.split_files, 0u);
}

TEST_F(HotLayoutTest, MakesTheSameBytesOfTheSameAndCanBeMadeAgainOfItsResult) {
  Image layer({});
  layer.file("a", pattern(4 * kMiB, 1));
  layer.file("b", pattern(4 * kMiB, 2));
  layer.finish();
  Reader before = reader(layer);
  const std::vector<TouchedRun> touched = {touch(before, "/b", kMiB, 20), touch(before, "/a", 2 * kMiB, 3)};
  Image first;
  Image second;
  ASSERT_TRUE(lay_out(layer, touched, first).ok());
  ASSERT_TRUE(lay_out(layer, touched, second).ok());

  Reader middle = reader(first);
  Image again;
  ASSERT_TRUE(lay_out(first, {touch(middle, "/a", 0, 2), touch(middle, "/b", 3 * kMiB, 40)}, again).ok());

  EXPECT_EQ(first.digest(), second.digest());
  EXPECT_EQ(first.written.data_digest, second.written.data_digest);
  Reader after = reader(again);
  EXPECT_EQ(contents(after), contents(before));
  EXPECT_EQ(data_offset(after, "/a", 0), 0u);
}

TEST_F(HotLayoutTest, MakesOneDataFileOfThoseOfAnImagesParts) {
  Image lower({.overlaps = Overlaps::kLayer});
  lower.file("lower/a", pattern(2 * kMiB, 1));
  lower.file("lower/tailed", pattern(9'000, 2));
  lower.finish();
  Image upper({.overlaps = Overlaps::kLayer, .profile = Profile::kLz4});
  upper.file("upper/text", std::string(kMiB, 't'));
  upper.file("upper/b", pattern(kMiB, 3));
  upper.finish();
  Image image;
  ASSERT_TRUE(merge({&lower, &upper}, image).ok());
  Reader before = reader(image, {&lower, &upper});
  ASSERT_EQ(before.devices().size(), 2u);
  const auto touched_page = [&](const std::string& path, std::uint64_t at) {
    const Extent extent = before.extent(before.lookup(path).value(), at).value();
    return TouchedRun{static_cast<std::uint32_t>(extent.source), {static_cast<std::uint32_t>((extent.offset + at - extent.at) / kBlockBytes), 1}};
  };

  Image out;
  ASSERT_TRUE(lay_out(image, {touched_page("/upper/b", 64 * 4096), touched_page("/lower/a", kMiB)}, out, {}, {&lower, &upper}).ok());

  Reader after = reader(out);
  EXPECT_EQ(after.devices().size(), 1u);
  EXPECT_EQ(contents(after), contents(before));
  EXPECT_EQ(data_offset(after, "/upper/b", 64 * 4096), 0u);
  EXPECT_EQ(data_offset(after, "/lower/a", kMiB), 4096u);
}

TEST_F(HotLayoutTest, RefusesTouchesOfNothingAndPartsOfImages) {
  Image layer({});
  layer.file("a", pattern(kMiB, 1));
  layer.finish();
  Image part;
  part.file("under/a", pattern(kMiB, 1));
  part.finish();

  Image nothing;
  Image of_part;
  EXPECT_EQ(lay_out(layer, {{1, {5'000, 9}}}, nothing).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(lay_out(part, {{1, {0, 1}}}, of_part).error().code(), ErrorCode::kUnsupported);
}

TEST_F(HotLayoutTest, EndsWhenItIsCancelled) {
  Image layer({});
  layer.file("a", pattern(kMiB, 1));
  layer.finish();
  const std::atomic<bool> cancelled{true};

  Image out;
  EXPECT_EQ(lay_out(layer, {{1, {0, 1}}}, out, {.on_progress = {}, .cancelled = &cancelled}).error().code(), ErrorCode::kCancelled);
}

TEST_F(HotLayoutTest, KeepsAllContentWhateverWasTouched) {
  for (unsigned seed = 1; seed <= 24; seed++) {
    std::mt19937 random(seed);
    const auto below = [&](std::uint64_t limit) { return std::uniform_int_distribution<std::uint64_t>(0, limit - 1)(random); };
    Image layer({.profile = seed % 2 == 0 ? Profile::kPlain : Profile::kLz4});
    for (int i = 0; i < 30; i++) {
      const std::string path = "d" + std::to_string(below(4)) + "/" + std::to_string(i);
      const std::uint64_t bytes = below(i % 5 == 0 ? 2 * kMiB : 60'000);
      if (i % 7 != 3) {
        layer.file(path, below(3) == 0 ? std::string(bytes, 'z') : pattern(bytes, static_cast<unsigned>(below(20))));
        continue;
      }
      ASSERT_TRUE(layer.writer->begin_file(path, {.mode = 0600}, {.bytes = bytes + kMiB, .sparse = true}).ok());
      ASSERT_TRUE(layer.writer->skip(below(kMiB)).ok());
      ASSERT_TRUE(layer.writer->write(pattern(bytes, 50)).ok());
      ASSERT_TRUE(layer.writer->finish_file().ok());
    }
    layer.finish();
    const std::uint64_t blocks = layer.written.data_bytes / kBlockBytes;
    std::vector<TouchedRun> touched;
    for (int i = 0; i < 20; i++) touched.push_back({1, {static_cast<std::uint32_t>(below(blocks)), static_cast<std::uint32_t>(1 + below(40))}});

    Image out;
    const Result<HotCounts> counts = lay_out(layer, touched, out);

    ASSERT_TRUE(counts.ok()) << counts.error().message();
    Reader before = reader(layer);
    Reader after = reader(out);
    EXPECT_EQ(contents(after), contents(before)) << "seed " << seed;
    EXPECT_EQ(out.written.data_bytes, layer.written.data_bytes) << "seed " << seed;
  }
}

}  // namespace
}  // namespace dsec::erofs
