#include "image/layer_optimizer.h"

#include "image/image_fixture.h"
#include "origin/access_trace.h"

namespace dsec::image {
namespace {

constexpr std::size_t kPage = origin::AccessTrace::kPageBytes;

// Bytes that no compression and no equal page of another file makes less of.
std::string noise(std::size_t bytes, unsigned seed) {
  std::string out(bytes, '\0');
  std::uint32_t state = seed * 2'654'435'761u + 1;
  for (char& one : out) {
    state = state * 1'664'525u + 1'013'904'223u;
    one = static_cast<char>(state >> 24);
  }
  return out;
}

class LayerOptimizerTest : public ImageTest {
 protected:
  void SetUp() override {
    ImageTest::SetUp();
    if (IsSkipped()) return;
    TarFixture tar;
    for (unsigned i = 0; i < 6; i++) tar.file("files/" + std::to_string(i), noise(3 << 20, i));
    tar.file("small", noise(30'000, 9));
    auto imported = import_tar(tar.finished(), {.kind = model::LayerKind::kWorkspace, .source_label = "a.tar", .profile = erofs::Profile::kPlain});
    ASSERT_TRUE(imported.ok()) << imported.error().message();
    record_ = *imported;
    device_ = store_->data(record_.digest).value().at(0).device;
  }
  TracesByData trace_of(std::vector<origin::Touch> touches) const { return {{device_.digest, origin::AccessTrace(device_.bytes(), std::move(touches)).bytes()}}; }
  std::string first_data_page(const std::string& digest) const {
    std::string page(kPage, '\0');
    const LayerStore::OpenFiles files = store_->open_files(digest).value();
    EXPECT_EQ(::pread(files.data.at(0).get(), page.data(), page.size(), 0), static_cast<ssize_t>(kPage));
    return page;
  }

  model::LayerRecord record_;
  erofs::Device device_;
};

TEST_F(LayerOptimizerTest, MakesALayerOfTheSameFilesWhichHasTheTouchedPagesFirst) {
  const std::string wanted = noise(3 << 20, 4).substr(0, kPage);

  // Chunk 50 is of the fifth file: 6 files of 12 chunks each, 48 is where it begins.
  const auto made = importer_->optimize(record_.digest, trace_of({{.chunk = 48, .at_ms = 1, .pages = 0b11}, {.chunk = 10, .at_ms = 5, .pages = 1}}), {});

  ASSERT_TRUE(made.ok()) << made.error().message();
  EXPECT_NE(made->record.digest, record_.digest);
  EXPECT_EQ(made->record.kind, model::LayerKind::kWorkspace);
  EXPECT_EQ(made->record.source, "optimized from " + record_.digest);
  EXPECT_EQ(made->record.entries, record_.entries);
  EXPECT_EQ(made->counts.touched_bytes, 3 * kPage);
  EXPECT_EQ(first_data_page(made->record.digest), wanted);
  const int before = store_->mount(record_.digest).value();
  const int after = store_->mount(made->record.digest).value();
  for (unsigned i = 0; i < 6; i++) EXPECT_TRUE(content(before, "files/" + std::to_string(i)) == content(after, "files/" + std::to_string(i))) << i;
  EXPECT_TRUE(content(after, "small") == noise(30'000, 9));
}

TEST_F(LayerOptimizerTest, TheSameTraceMakesTheSameLayerOnce) {
  const TracesByData traces = trace_of({{.chunk = 30, .at_ms = 1, .pages = 1}});
  const std::string first = importer_->optimize(record_.digest, traces, {}).value().record.digest;

  const std::string second = importer_->optimize(record_.digest, traces, {}).value().record.digest;

  EXPECT_EQ(first, second);
  EXPECT_EQ(store_->list().size(), 2u);
}

TEST_F(LayerOptimizerTest, WhatCannotBeDoneLeavesNothing) {
  const std::vector<std::string> before = leftovers();
  const std::atomic<bool> cancelled{true};
  const TracesByData good = trace_of({{.chunk = 30, .at_ms = 1, .pages = 1}});

  EXPECT_EQ(importer_->optimize(record_.digest, {{device_.digest, "no trace"}}, {}).error().code(), ErrorCode::kDataFault);
  EXPECT_EQ(importer_->optimize(record_.digest, {}, {}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(importer_->optimize(record_.digest, good, {.cancelled = &cancelled}).error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(importer_->optimize("sha256:" + std::string(64, '0'), good, {}).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(trace_of_only_data(*store_, record_.digest, "no trace").error().code(), ErrorCode::kInvalidArgument);

  EXPECT_EQ(leftovers(), before);
}

}  // namespace
}  // namespace dsec::image
