// Images that share layers.
#include "image/layer_exchange.h"
#include "image/oci_fixture.h"
#include "model/builder_key.h"
#include "origin/memory_origin.h"

namespace dsec::image {
namespace {

// That no compression makes small.
std::string noise(std::size_t size, std::uint32_t state) {
  std::string out(size, '\0');
  for (char& byte : out) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return out;
}

std::string layer_of(const std::string& name, std::uint32_t seed, std::size_t size = 600'000) { return TarFixture().file(name, noise(size, seed)).finished(); }

Image image_of(std::vector<std::string> layers) {
  Image image;
  image.compressions.assign(layers.size(), "gzip -1");
  image.layers = std::move(layers);
  return image;
}

class OciPartsTest : public OciTest {
 protected:
  ImportedImage imported(const Image& image, const std::vector<std::string>& reusable = {}) {
    Result<ImportedImage> done = import_image(layout(image), {.reusable_parts = {reusable.begin(), reusable.end()}});
    EXPECT_TRUE(done.ok()) << done.error().message();
    return std::move(done).value();
  }
  std::size_t data_objects() const {
    std::size_t count = 0;
    for (const std::string& path : leftovers()) count += path.ends_with(".data");
    return count;
  }
};

TEST_F(OciPartsTest, ConvertsAKnownLayerNoSecondTime) {
  const ImportedImage first = imported(image_of({layer_of("base", 1), layer_of("one", 2)}));

  const ImportedImage second = imported(image_of({layer_of("base", 1), layer_of("two", 3)}), first.record.parts);

  EXPECT_EQ(first.layers, 2u);
  EXPECT_EQ(first.reused_layers, 0u);
  EXPECT_EQ(second.reused_layers, 1u);
  EXPECT_GT(second.reused_bytes, 600'000u);
  EXPECT_EQ(second.record.parts[0], first.record.parts[0]);
  EXPECT_EQ(data_objects(), 3u);
  EXPECT_EQ(store_->list().size(), 2u) << "parts are not listed";
  const int mount = store_->mount(second.record.digest).value();
  EXPECT_EQ(content(mount, "base"), noise(600'000, 1));
  EXPECT_EQ(content(mount, "two"), noise(600'000, 3));
}

TEST_F(OciPartsTest, ReusesNothingOfImagesThatTheCallerMayNotRead) {
  const ImportedImage first = imported(image_of({layer_of("base", 1), layer_of("one", 2)}));

  const ImportedImage again = imported(image_of({layer_of("base", 1), layer_of("one", 2)}));

  EXPECT_EQ(again.reused_layers, 0u);
  EXPECT_EQ(again.record.digest, first.record.digest) << "what is stored is the same all the same";
  EXPECT_EQ(data_objects(), 2u);
}

TEST_F(OciPartsTest, MakesTheSameImageOfKnownAndOfNewLayers) {
  const ImportedImage first = imported(image_of({layer_of("base", 1), layer_of("one", 2)}));
  const std::string digest = imported(image_of({layer_of("base", 1), layer_of("two", 3)}), first.record.parts).record.digest;
  for (const model::LayerRecord& record : store_->list()) ASSERT_TRUE(store_->remove(record.digest).ok());
  ASSERT_TRUE(leftovers().empty());

  EXPECT_EQ(imported(image_of({layer_of("base", 1), layer_of("two", 3)})).record.digest, digest);
}

TEST_F(OciPartsTest, KeepsWhatOtherImagesUse) {
  const ImportedImage first = imported(image_of({layer_of("base", 1), layer_of("one", 2)}));
  const ImportedImage second = imported(image_of({layer_of("base", 1), layer_of("two", 3)}), first.record.parts);

  ASSERT_TRUE(store_->remove(first.record.digest).ok());

  EXPECT_EQ(data_objects(), 2u);
  EXPECT_EQ(content(store_->mount(second.record.digest).value(), "base"), noise(600'000, 1));
  const ImportedImage third = imported(image_of({layer_of("base", 1)}), second.record.parts);
  EXPECT_EQ(third.reused_layers, 1u);
  ASSERT_TRUE(store_->remove(second.record.digest).ok());
  ASSERT_TRUE(store_->remove(third.record.digest).ok());
  EXPECT_TRUE(leftovers().empty());
}

TEST_F(OciPartsTest, TellsWhatARemovalWouldGiveBack) {
  const auto stored = [&] {
    std::uint64_t bytes = 0;
    for (const std::string& path : leftovers()) bytes += path.ends_with(".json") ? 0 : std::filesystem::file_size(path);
    return bytes;
  };
  const ImportedImage first = imported(image_of({layer_of("base", 1), layer_of("one", 2)}));
  EXPECT_EQ(store_->sole_bytes(first.record.digest), stored());
  const ImportedImage second = imported(image_of({layer_of("base", 1), layer_of("two", 3)}), first.record.parts);
  const std::uint64_t told = store_->sole_bytes(second.record.digest);
  const std::uint64_t before = stored();

  ASSERT_TRUE(store_->remove(second.record.digest).ok());

  EXPECT_EQ(before - stored(), told);
}

TEST_F(OciPartsTest, LeavesNothingOfAnImportThatFailsAtItsLastLayer) {
  TarFixture many;
  for (int i = 0; i < 50; i++) many.file("f" + std::to_string(i), "x");
  const Image image = image_of({layer_of("base", 1), many.finished()});

  const Result<ImportedImage> failed = import_image(layout(image), {.max_entries = 40});

  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code(), ErrorCode::kTooLarge);
  EXPECT_TRUE(leftovers().empty());
}

TEST_F(OciPartsTest, RemovesPartsOfNoImageAtTheNextStart) {
  const ImportedImage image = imported(image_of({layer_of("base", 1), layer_of("one", 2)}));
  // As a crash between the parts and the image leaves it.
  ASSERT_EQ(::unlink((directory_ + "/layers/" + image.record.digest.substr(7) + ".json").c_str()), 0);

  open();

  EXPECT_TRUE(leftovers().empty());
}

TEST_F(OciPartsTest, TakesNoLayerForWhatItIsNot) {
  Image image = image_of({layer_of("base", 1), layer_of("one", 2)});
  image.claimed_diff_ids = {sha256(image.layers[0]), sha256("the layer of somebody else")};

  const Result<ImportedImage> lying = import_image(layout(image));

  ASSERT_FALSE(lying.ok());
  EXPECT_EQ(lying.error().code(), ErrorCode::kDataFault) << lying.error().message();
  EXPECT_TRUE(leftovers().empty());
}

TEST_F(OciPartsTest, RefersToFifteenLayersAndCopiesTheRest) {
  std::vector<std::string> layers;
  for (std::uint32_t i = 0; i < 24; i++) layers.push_back(layer_of("f" + std::to_string(i), i, 300'000 + i * 4096));

  const ImportedImage image = imported(image_of(layers));

  const int mount = store_->mount(image.record.digest).value();
  for (std::uint32_t i = 0; i < 24; i++) EXPECT_EQ(content(mount, "f" + std::to_string(i)), noise(300'000 + i * 4096, i));
  EXPECT_TRUE(store_->verify(image.record.digest).ok());
}

TEST_F(OciPartsTest, TravelsToAnotherNodeWithAllItsData) {
  const std::string key = model::make_builder_key();
  const std::vector<std::string> trusted = {model::public_builder_key(key).value()};
  origin::MemoryOrigin origin;
  MemoryKeeper keeper;
  const auto other_store = std::move(LayerStore::open(directory_ + "/other/layers", keeper)).value();
  const auto put = std::move(LayerExchange::create({.node = "one", .lease_file = directory_ + "/one.lease", .work_directory = directory_ + "/exchange", .signing_key = key, .trusted_keys = trusted}, origin, *store_)).value();
  const auto take = std::move(LayerExchange::create({.node = "two", .lease_file = directory_ + "/two.lease", .work_directory = directory_ + "/other/exchange", .signing_key = key, .trusted_keys = trusted}, origin, *other_store)).value();
  const ImportedImage image = imported(image_of({layer_of("base", 1), layer_of("one", 2), TarFixture().file("small", noise(20'000, 3)).finished()}));

  ASSERT_TRUE(put->put(image.record.digest).ok());
  const Result<model::LayerRecord> taken = take->take(image.record.digest);

  ASSERT_TRUE(taken.ok()) << taken.error().message();
  const int mount = other_store->mount(image.record.digest).value();
  EXPECT_EQ(content(mount, "base"), noise(600'000, 1));
  EXPECT_EQ(content(mount, "one"), noise(600'000, 2));
  EXPECT_EQ(content(mount, "small"), noise(20'000, 3));
  ASSERT_TRUE(other_store->remove(image.record.digest).ok());
  EXPECT_TRUE(std::filesystem::is_empty(directory_ + "/other/layers"));
}

}  // namespace
}  // namespace dsec::image
