#include "image/layer_store.h"

#include <fcntl.h>
#include <sys/statvfs.h>

#include "erofs/digest.h"
#include "image/erofs_mount.h"
#include "image/image_fixture.h"

namespace dsec::image {
namespace {

class LayerStoreTest : public ImageTest {
 protected:
  model::LayerRecord imported(const std::string& text = "content") {
    auto record = import_tar(TarFixture().file("f", text).finished());
    EXPECT_TRUE(record.ok()) << record.error().message();
    return std::move(record).value();
  }
  std::string image_of(const model::LayerRecord& record) const { return directory_ + "/layers/" + record.digest.substr(7) + ".erofs"; }
  // An image file beside the store, as an importer would make it.
  std::string loose_copy(const model::LayerRecord& record) const {
    std::filesystem::copy_file(image_of(record), directory_ + "/import/loose");
    return directory_ + "/import/loose";
  }
};

TEST_F(LayerStoreTest, MountsADigestOnceForTheWholeNode) {
  const model::LayerRecord record = imported();

  const int first = store_->mount(record.digest).value();
  const auto first_device = stat_of(first, ".").st_dev;
  const int second = store_->mount(record.digest).value();
  EXPECT_EQ(first, second);

  open();  // the process was replaced; the keeper was not
  const int third = store_->mount(record.digest).value();
  EXPECT_EQ(stat_of(third, ".").st_dev, first_device);
  EXPECT_EQ(keeper_.kept.size(), 1u);
}

TEST_F(LayerStoreTest, MountsReadOnlyWithoutSetIdAndDevices) {
  const model::LayerRecord record = imported();

  const int mount = store_->mount(record.digest).value();

  struct statvfs fs{};
  ASSERT_EQ(::fstatvfs(mount, &fs), 0);
  EXPECT_EQ(fs.f_flag & (ST_RDONLY | ST_NOSUID | ST_NODEV), static_cast<unsigned long>(ST_RDONLY | ST_NOSUID | ST_NODEV));
  EXPECT_TRUE(is_erofs(mount));
  EXPECT_EQ(content(mount, "f"), "content");
}

TEST_F(LayerStoreTest, FindsItsRecordsAgain) {
  const model::LayerRecord record = imported();

  open();

  EXPECT_EQ(store_->find(record.digest).value(), record);
  EXPECT_EQ(store_->list().size(), 1u);
  EXPECT_EQ(store_->find("sha256:" + std::string(64, '0')).error().code(), ErrorCode::kNotFound);
  EXPECT_TRUE(store_->verify(record.digest).ok());
}

TEST_F(LayerStoreTest, RefusesAnImageThatIsNotWhatItsRecordSays) {
  model::LayerRecord record = imported();
  const std::string image = loose_copy(record);
  ASSERT_TRUE(store_->remove(record.digest).ok());
  ASSERT_EQ(::chmod(image.c_str(), 0600), 0);
  {
    const sys::Fd file = sys::open_at(AT_FDCWD, image, O_WRONLY).value();
    ASSERT_EQ(::pwrite(file.get(), "!", 1, 1500), 1);
  }

  const auto published = store_->publish(image, record);

  ASSERT_FALSE(published.ok());
  EXPECT_EQ(published.error().code(), ErrorCode::kDataFault);
  EXPECT_TRUE(store_->list().empty());
}

TEST_F(LayerStoreTest, RefusesAFileThatIsNoImage) {
  ASSERT_TRUE(sys::replace_file(directory_ + "/import/text", std::string(8192, 'x'), 0600).ok());

  const auto published = store_->publish(directory_ + "/import/text", {});

  ASSERT_FALSE(published.ok());
  EXPECT_EQ(published.error().code(), ErrorCode::kDataFault);
}

TEST_F(LayerStoreTest, KeepsTheFirstRecordOfADigest) {
  const model::LayerRecord record = imported();
  model::LayerRecord again = record;
  again.source = "elsewhere";

  const auto published = store_->publish(loose_copy(record), again);

  ASSERT_TRUE(published.ok()) << published.error().message();
  EXPECT_EQ(*published, record);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/import/loose"));
}

TEST_F(LayerStoreTest, RemovesOnlyWhatNoSandboxUses) {
  const model::LayerRecord record = imported();
  ASSERT_TRUE(store_->mount(record.digest).ok());

  const auto refused = store_->remove(record.digest, [](const std::string&) { return true; });
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kConflict);

  const sys::Fd in_use = sys::open_at(store_->mount(record.digest).value(), "f", O_RDONLY).value();
  ASSERT_TRUE(store_->remove(record.digest, [](const std::string&) { return false; }).ok());

  EXPECT_TRUE(leftovers().empty());
  EXPECT_TRUE(keeper_.kept.empty());
  EXPECT_EQ(store_->mount(record.digest).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(sys::read_all(in_use.get(), 100).value(), "content");  // what runs keeps its content
}

TEST_F(LayerStoreTest, MendsWhatACrashLeftBetweenTheSteps) {
  const model::LayerRecord record = imported();
  const std::string other(64, 'a');
  ASSERT_TRUE(sys::replace_file(directory_ + "/layers/" + other + ".erofs", "an image without a record", 0600).ok());
  ASSERT_TRUE(sys::replace_file(directory_ + "/layers/" + other + ".json.new", "{", 0600).ok());
  ASSERT_TRUE(sys::replace_file(directory_ + "/layers/stray", "?", 0600).ok());

  open();

  EXPECT_FALSE(std::filesystem::exists(directory_ + "/layers/" + other + ".erofs"));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/layers/" + other + ".json.new"));
  EXPECT_EQ(store_->list().size(), 1u);
  EXPECT_EQ(store_->notes(), std::vector<std::string>{"unknown file in the layer directory: stray"});
}

TEST_F(LayerStoreTest, LeavesOutALayerWhoseImageIsCut) {
  const model::LayerRecord record = imported();
  ASSERT_EQ(::truncate(image_of(record).c_str(), 100), 0);

  open();

  EXPECT_TRUE(store_->list().empty());
  EXPECT_EQ(store_->notes().size(), 1u);
}

TEST_F(LayerStoreTest, FindsAChangedByte) {
  const model::LayerRecord record = imported();
  ASSERT_EQ(::chmod(image_of(record).c_str(), 0600), 0);
  {
    const sys::Fd file = sys::open_at(AT_FDCWD, image_of(record), O_WRONLY).value();
    ASSERT_EQ(::pwrite(file.get(), "!", 1, 1500), 1);
  }

  const auto verified = store_->verify(record.digest);

  ASSERT_FALSE(verified.ok());
  EXPECT_EQ(verified.error().code(), ErrorCode::kDataFault);
}

TEST_F(LayerStoreTest, DropsKeptMountsOfLayersThatAreGone) {
  const model::LayerRecord record = imported();
  ASSERT_TRUE(store_->mount(record.digest).ok());
  ASSERT_TRUE(keeper_.put("layer/sha256:" + std::string(64, 'b'), store_->mount(record.digest).value()).ok());

  open();

  EXPECT_EQ(keeper_.kept.size(), 1u);
}

TEST(Sha256Test, AgreesWithTheStandard) {
  erofs::Sha256 hash;
  hash.update("a");
  hash.update("bc");
  EXPECT_EQ(hash.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace dsec::image
