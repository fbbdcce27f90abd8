// Parts of builds: the cache that they are, and what a copy makes.
#include <sys/stat.h>

#include <filesystem>

#include "image/image_fixture.h"
#include "image/tar_fixture.h"

namespace dsec::image {
namespace {

class BuildPartsTest : public ImageTest {
 protected:
  model::LayerRecord part(const std::string& name, const std::string& text, PartHolds& holds) {
    TarFixture tar;
    tar.file("f", text);
    return import_as(tar, name, holds);
  }
  model::LayerRecord import_as(const TarFixture& tar, const std::string& name, PartHolds& holds) {
    ImportOptions options;
    options.kind = model::LayerKind::kWorkspace;
    options.part_id = name;
    options.part_holds = &holds;
    Result<model::LayerRecord> made = import_tar(tar.finished(), options);
    EXPECT_TRUE(made.ok()) << made.error().message();
    return std::move(made).value();
  }
  CopyOptions copy_of(const std::string& context, PartHolds& holds) {
    CopyOptions options;
    options.source = context;
    options.identity = "test";
    options.name = [](const std::string& digest) { return "build:" + digest; };
    options.layer.part_holds = &holds;
    return options;
  }
};

TEST_F(BuildPartsTest, APartOutlivesItsBuildAndARestartAndIsNoLayerThatIsListed) {
  {
    PartHolds holds(*store_);
    part("build:key", "content", holds);
    part("context:p:1", "of a context", holds);
  }

  open();
  PartHolds holds(*store_);

  EXPECT_TRUE(store_->find_build_part("build:key", holds).has_value());
  EXPECT_FALSE(store_->find_build_part("build:other", holds).has_value());
  EXPECT_FALSE(store_->find_build_part("context:p:1", holds).has_value()) << "it went with its build";
  EXPECT_TRUE(store_->list().empty());
}

TEST_F(BuildPartsTest, ALayerThatABuildHoldsIsNotRemoved) {
  const model::LayerRecord base = import_tar(TarFixture().file("f", "x").finished()).value();
  {
    PartHolds holds(*store_);
    ASSERT_TRUE(store_->hold_layer(base.digest, holds).ok());
    EXPECT_TRUE(store_->in_use_by_build(base.digest));

    const Result<void> removed = store_->remove(base.digest);

    ASSERT_FALSE(removed.ok());
    EXPECT_EQ(removed.error().code(), ErrorCode::kConflict);
  }
  EXPECT_FALSE(store_->in_use_by_build(base.digest));
  EXPECT_TRUE(store_->find(base.digest).ok()) << "letting go removes parts alone";
  EXPECT_TRUE(store_->remove(base.digest).ok());
}

TEST_F(BuildPartsTest, TheSweepTakesTheOldestBeyondTheBudgetAndWhatIsOld) {
  std::vector<model::LayerRecord> parts;
  {
    PartHolds holds(*store_);
    for (int i = 0; i < 3; i++) {
      parts.push_back(part("build:" + std::to_string(i), std::string(200'000, static_cast<char>('a' + i)) + std::to_string(i), holds));
      const std::string record = store_->directory() + "/" + parts.back().digest.substr(7) + ".json";
      const timespec times[2] = {{1'000'000 + i, 0}, {1'000'000 + i, 0}};
      ASSERT_EQ(::utimensat(AT_FDCWD, record.c_str(), times, 0), 0);
    }
    EXPECT_EQ(store_->sweep_build_parts(0, std::chrono::seconds(0))->removed, 0U) << "all are held";
  }
  open();
  const std::uint64_t one = parts[0].size_bytes;
  const auto for_ever = std::chrono::hours(24 * 365 * 200);

  const LayerStore::Swept by_size = store_->sweep_build_parts(2 * one + one / 2, for_ever).value();
  EXPECT_EQ(by_size.removed, 1U);
  EXPECT_EQ(by_size.kept, 2U);
  EXPECT_FALSE(store_->find(parts[0].digest).ok());
  PartHolds holds(*store_);
  ASSERT_TRUE(store_->find_build_part("build:1", holds).has_value());  // a use, and held

  const LayerStore::Swept by_age = store_->sweep_build_parts(1ULL << 40, std::chrono::hours(1)).value();
  EXPECT_EQ(by_age.removed, 1U);
  EXPECT_TRUE(store_->find(parts[1].digest).ok());
  EXPECT_FALSE(store_->find(parts[2].digest).ok());
}

TEST_F(BuildPartsTest, ACopyIsFoundAgainByWhatIsInItAndLaysItselfOverItsBase) {
  PartHolds holds(*store_);
  const model::LayerRecord base = import_tar(TarFixture().directory("usr").symlink("alias", "usr").file("etc/passwd", "u:x:7:8::/:/bin/sh\n").finished()).value();
  const model::LayerRecord context = import_as(TarFixture().file("a/one", "1").file("a/two", "2").file("b", "3"), "context:p:1", holds);
  CopyOptions options = copy_of(context.digest, holds);
  options.below = {base.digest};
  options.spec.sources = {"a", "b"};
  options.spec.destination = "/alias/x/";
  options.spec.owner = "u";

  const Result<CopiedPart> first = importer_->copy(options);
  const Result<CopiedPart> again = importer_->copy(options);

  ASSERT_TRUE(first.ok()) << first.error().message();
  ASSERT_TRUE(again.ok()) << again.error().message();
  EXPECT_FALSE(first->reused);
  EXPECT_TRUE(again->reused);
  MergeOptions merge;
  merge.layers = {base.digest, first->record->digest};
  merge.project = "p";
  merge.layer.part_holds = &holds;
  merge.layer.architecture = std::string(model::node_architecture());
  const Result<model::LayerRecord> merged = importer_->merge(merge);
  ASSERT_TRUE(merged.ok()) << merged.error().message();
  const int root = store_->mount(merged->digest).value();
  EXPECT_EQ(stat_of(root, "usr/x/one").st_uid, 7U);
  EXPECT_EQ(stat_of(root, "usr/x/b").st_gid, 8U);
  EXPECT_TRUE(S_ISLNK(stat_of(root, "alias").st_mode));
}

TEST_F(BuildPartsTest, WhatCannotBeCopiedIsRefused) {
  PartHolds holds(*store_);
  const model::LayerRecord base = import_tar(TarFixture().file("file", "x").directory("directory").finished()).value();
  const model::LayerRecord context = import_as(TarFixture().file("a", "1").file("b", "2").symlink("loop", "loop"), "context:p:1", holds);
  struct Case {
    std::vector<std::string> sources;
    std::string destination;
    std::string owner;
  };
  for (const Case& one : {Case{{"missing"}, "/x", ""}, Case{{"a", "b"}, "/x", ""}, Case{{"../a"}, "/x", ""}, Case{{"loop"}, "/x", ""}, Case{{"a"}, "/file/x", ""}, Case{{"a"}, "/x", "nobody"},
                          Case{{"*.none"}, "/x", ""}, Case{{"a"}, "/x", "70000"}, Case{{"a"}, "/file/", ""}, Case{{"a"}, "/../x/..", ""}}) {
    CopyOptions options = copy_of(context.digest, holds);
    options.below = {base.digest};
    options.spec.sources = one.sources;
    options.spec.destination = one.destination;
    options.spec.owner = one.owner;

    const Result<CopiedPart> copied = importer_->copy(options);

    EXPECT_FALSE(copied.ok()) << one.sources[0] << " to " << one.destination;
  }
}

}  // namespace
}  // namespace dsec::image
