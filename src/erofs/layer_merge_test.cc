#include "erofs/layer_merge.h"

#include "erofs/hand_made_image.h"
#include "erofs/layer_merge_fixture.h"

namespace dsec::erofs {
namespace {

using test::digest_text;
using test::Image;
using test::LayerMergeTest;
using test::pattern;

TEST_F(LayerMergeTest, RefersToTheDataOfTheLayers) {
  for (const Profile profile : {Profile::kPlain, Profile::kLz4}) {
    Image lower({.overlaps = Overlaps::kLayer, .profile = profile});
    lower.file("big", pattern(300'000, 1));
    lower.file("text", std::string(200'000, 't'));
    lower.file("tailed", pattern(9'000, 2));
    lower.finish();
    Image upper({.overlaps = Overlaps::kLayer, .profile = profile});
    upper.file("new", pattern(70'000, 3));
    upper.file("tiny", "x");
    upper.finish();

    Image out;
    const MergeCounts counts = merge({&lower, &upper}, out).value();

    EXPECT_EQ(counts.entries, 5u);
    EXPECT_EQ(counts.copied_bytes, 0u);
    EXPECT_EQ(out.written.data_bytes, 0u);
    Reader merged = reader(out, {&lower, &upper});
    ASSERT_EQ(merged.devices().size(), 2u);
    EXPECT_EQ(content_of(merged, "/big"), pattern(300'000, 1));
    EXPECT_EQ(content_of(merged, "/text"), std::string(200'000, 't'));
    EXPECT_EQ(content_of(merged, "/tailed"), pattern(9'000, 2));
    EXPECT_EQ(content_of(merged, "/new"), pattern(70'000, 3));
    EXPECT_EQ(content_of(merged, "/tiny"), "x");
  }
}

TEST_F(LayerMergeTest, AppliesWhatALayerHidesAndKeepsNoMark) {
  Image lower;
  lower.file("etc/gone", "1");
  lower.file("etc/keep", "2");
  lower.file("cache/old", "3");
  lower.file("data/a", "4");
  lower.file("turns", "file");
  lower.finish();
  Image upper;
  upper.hide("etc/gone");
  upper.hide("nothing/there");
  upper.file("cache/new", "5");
  ASSERT_TRUE(upper.writer->make_opaque("cache").ok());
  upper.hide("data");
  upper.file("data/b", "6");  // a new directory of that name
  upper.directory("turns");
  upper.file("turns/inside", "7");
  upper.finish();

  Image out;
  ASSERT_TRUE(merge({&lower, &upper}, out).ok());

  Reader merged = reader(out);
  EXPECT_EQ(names(merged), "cache cache/new data data/b etc etc/keep turns turns/inside");
  for (const auto& [path, text] : contents(merged)) EXPECT_EQ(text.find("overlay"), std::string::npos) << path;
}

TEST_F(LayerMergeTest, LeadsThroughLinksOfLowerLayers) {
  Image lower;
  lower.directory("usr/lib", {.mode = 0750, .uid = 7});
  lower.link("lib", "usr/lib");
  lower.link("stated", "usr");
  lower.finish();
  Image upper;
  upper.file("lib/through", "1");
  upper.directory("stated");
  upper.file("stated/own", "2");
  upper.link("mine", "/usr/lib");
  upper.file("mine/deep/er", "3");  // the target is in the lower layer only
  upper.finish();

  Image out;
  ASSERT_TRUE(merge({&lower, &upper}, out).ok());

  Reader merged = reader(out);
  EXPECT_EQ(names(merged), "lib mine stated stated/own usr usr/lib usr/lib/deep usr/lib/deep/er usr/lib/through");
  EXPECT_EQ(merged.lookup("/usr/lib")->uid, 7u);
}

TEST_F(LayerMergeTest, LinksToFilesOfLowerLayersAsTheyWere) {
  Image lower;
  lower.file("again", pattern(9'000, 1));
  lower.finish();
  Image upper;
  ASSERT_TRUE(upper.writer->make_hard_link("more", "again").ok());
  ASSERT_TRUE(upper.writer->make_hard_link("most", "more").ok());
  upper.file("again", "new");
  upper.finish();

  Image out;
  ASSERT_TRUE(merge({&lower, &upper}, out).ok());

  Reader merged = reader(out, {&lower});
  EXPECT_EQ(content_of(merged, "/more"), pattern(9'000, 1));
  EXPECT_EQ(merged.lookup("/more")->nid, merged.lookup("/most")->nid);
  EXPECT_EQ(content_of(merged, "/again"), "new");
}

TEST_F(LayerMergeTest, RefusesALinkToWhatNoLayerHas) {
  Image alone;
  ASSERT_TRUE(alone.writer->make_hard_link("more", "nowhere").ok());
  alone.finish();

  Image out;
  const Result<MergeCounts> merged = merge({&alone}, out);

  ASSERT_FALSE(merged.ok());
  EXPECT_EQ(merged.error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(LayerMergeTest, CopiesContentOfDataFilesThatAreHardlyUsed) {
  Image lower;
  lower.file("replaced", pattern(500'000, 1));
  lower.file("stays", pattern(20'000, 2));
  ASSERT_TRUE(lower.writer->begin_file("sparse", {}, {.bytes = 3'000'000, .sparse = true}).ok());
  ASSERT_TRUE(lower.writer->skip(1'000'000).ok());
  ASSERT_TRUE(lower.writer->write(pattern(5'000, 3)).ok());
  ASSERT_TRUE(lower.writer->finish_file().ok());
  lower.finish();
  Image upper;
  upper.file("replaced", pattern(600'000, 4));
  upper.finish();

  Image out;
  const MergeCounts counts = merge({&lower, &upper}, out, {.at = "", .copied_below_bytes = 256 << 10}).value();

  EXPECT_EQ(counts.copied_bytes, 3'020'000u);
  EXPECT_LT(out.written.data_bytes, 200'000u);
  Reader merged = reader(out, {&upper});
  ASSERT_EQ(merged.devices().size(), 2u);
  EXPECT_EQ(digest_text(merged.devices()[0]), out.written.data_digest);
  EXPECT_EQ(content_of(merged, "/stays"), pattern(20'000, 2));
  EXPECT_EQ(content_of(merged, "/replaced"), pattern(600'000, 4));
  EXPECT_EQ(content_of(merged, "/sparse"), std::string(1'000'000, '\0') + pattern(5'000, 3) + std::string(1'995'000, '\0'));
}

TEST_F(LayerMergeTest, KeepsToSixteenDataFiles) {
  std::vector<std::unique_ptr<Image>> images;
  std::vector<const Image*> layers;
  for (unsigned i = 0; i < 40; i++) {
    images.push_back(std::make_unique<Image>());
    images.back()->file("f" + std::to_string(i), pattern(8192 * (1 + i % 20), i));
    images.back()->finish();
    layers.push_back(images.back().get());
  }

  Image out;
  ASSERT_TRUE(merge(layers, out).ok());

  Reader merged = reader(out, layers);
  EXPECT_EQ(merged.devices().size(), kMaximalDevices);
  for (unsigned i = 0; i < 40; i++) EXPECT_EQ(content_of(merged, "/f" + std::to_string(i)), pattern(8192 * (1 + i % 20), i));
}

TEST_F(LayerMergeTest, PutsTheTreeWhereItIsAsked) {
  Image layer;
  layer.directory("", {.mode = 0700, .uid = 5});
  layer.file("f", "1");
  ASSERT_TRUE(layer.writer->make_hard_link("g", "f").ok());
  layer.finish();

  Image out;
  ASSERT_TRUE(merge({&layer}, out, {.at = "work/project", .copied_below_bytes = 0}).ok());

  Reader merged = reader(out);
  EXPECT_EQ(names(merged), "work work/project work/project/f work/project/g");
  EXPECT_EQ(merged.lookup("/work/project")->uid, 5u);
}

}  // namespace
}  // namespace dsec::erofs
