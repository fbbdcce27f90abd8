#include "image/layer_store.h"

#include <fcntl.h>
#include <sys/statvfs.h>

#include <boost/json/serialize.hpp>

#include "erofs/digest.h"
#include "image/erofs_mount.h"
#include "image/image_fixture.h"
#include "image/parent_layer.h"
#include "model/json.h"

namespace dsec::image {
namespace {

class LayerStoreTest : public ImageTest {
 protected:
  model::LayerRecord imported(const std::string& text = "content") {
    auto record = import_tar(TarFixture().file("f", text).finished());
    EXPECT_TRUE(record.ok()) << record.error().message();
    return std::move(record).value();
  }
  // Enough to lie outside the metadata.
  static std::string long_text(char with = 'x') { return std::string(10'000, with); }
  std::string image_of(const model::LayerRecord& record) const { return directory_ + "/layers/" + record.digest.substr(7) + ".meta"; }
  std::vector<std::string> data_files() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/layers")) {
      if (entry.path().extension() == ".data") out.push_back(entry.path());
    }
    return out;
  }
  // The files beside the store, as an importer would make them.
  ImageFiles loose_copy(const model::LayerRecord& record) const {
    const ImageFiles copy{directory_ + "/import/loose.meta", directory_ + "/import/loose.data"};
    std::filesystem::copy_file(image_of(record), copy.metadata);
    const std::vector<std::string> data = data_files();
    EXPECT_TRUE(data.empty() ? sys::replace_file(copy.data, "", 0600).ok() : std::filesystem::copy_file(data[0], copy.data));
    return copy;
  }
  static void change_byte(const std::string& path, off_t at) {
    ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
    const sys::Fd file = sys::open_at(AT_FDCWD, path, O_WRONLY).value();
    ASSERT_EQ(::pwrite(file.get(), "!", 1, at), 1);
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

// Hidden tests are found by nobody through what they share with others.
TEST_F(LayerStoreTest, ALayerOfKindVerifierIsNoParentOfOthers) {
  const model::LayerRecord open_one = imported("seen");
  const auto hidden = import_tar(TarFixture().file("f", "hidden").finished(), {.kind = model::LayerKind::kVerifier});
  ASSERT_TRUE(hidden.ok()) << hidden.error().message();

  EXPECT_TRUE(open_parent(*store_, open_one.digest).ok());
  EXPECT_EQ(open_parent(*store_, hidden->digest).error().code(), ErrorCode::kPermissionDenied);
  EXPECT_TRUE(store_->open_files(hidden->digest).ok());
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
  const ImageFiles image = loose_copy(record);
  ASSERT_TRUE(store_->remove(record.digest).ok());
  change_byte(image.metadata, 1500);

  const auto published = store_->publish(image, record);

  ASSERT_FALSE(published.ok());
  EXPECT_EQ(published.error().code(), ErrorCode::kDataFault);
  EXPECT_TRUE(store_->list().empty());
}

TEST_F(LayerStoreTest, RefusesAnImageThatOurWriterWouldNotWrite) {
  const model::LayerRecord record = imported();
  const ImageFiles image = loose_copy(record);
  ASSERT_TRUE(store_->remove(record.digest).ok());
  change_byte(image.metadata, 1500);

  const auto published = store_->publish(image, {});  // whatever its digest is

  ASSERT_FALSE(published.ok());
  EXPECT_EQ(published.error().code(), ErrorCode::kDataFault);
  EXPECT_NE(published.error().message().find("not sound"), std::string::npos) << published.error().message();
  EXPECT_TRUE(store_->list().empty());
}

TEST_F(LayerStoreTest, RefusesAFileThatIsNoImage) {
  ASSERT_TRUE(sys::replace_file(directory_ + "/import/text", std::string(8192, 'x'), 0600).ok());

  ASSERT_TRUE(sys::replace_file(directory_ + "/import/none", "", 0600).ok());

  const auto published = store_->publish({directory_ + "/import/text", directory_ + "/import/none"}, {});

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
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/import/loose.meta"));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/import/loose.data"));
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
  for (const char* suffix : {".erofs", ".meta", ".data"}) {
    ASSERT_TRUE(sys::replace_file(directory_ + "/layers/" + other + suffix, "without a record", 0600).ok());
  }
  ASSERT_TRUE(sys::replace_file(directory_ + "/layers/" + other + ".json.new", "{", 0600).ok());
  ASSERT_TRUE(sys::replace_file(directory_ + "/layers/stray", "?", 0600).ok());

  open();

  for (const char* suffix : {".erofs", ".meta", ".data", ".json.new"}) EXPECT_FALSE(std::filesystem::exists(directory_ + "/layers/" + other + suffix)) << suffix;
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
  change_byte(image_of(record), 1500);

  const auto verified = store_->verify(record.digest);

  ASSERT_FALSE(verified.ok());
  EXPECT_EQ(verified.error().code(), ErrorCode::kDataFault);
}

// --- data apart --------------------------------------------------------------

TEST_F(LayerStoreTest, KeepsContentApartFromMetadata) {
  const model::LayerRecord record = imported(long_text());

  ASSERT_EQ(data_files().size(), 1u);
  EXPECT_EQ(record.size_bytes, std::filesystem::file_size(image_of(record)) + std::filesystem::file_size(data_files()[0]));
  EXPECT_EQ(content(store_->mount(record.digest).value(), "f"), long_text());
  EXPECT_TRUE(store_->verify(record.digest).ok());
  const LayerStore::OpenFiles files = store_->open_files(record.digest).value();
  ASSERT_EQ(files.data.size(), 1u);
  EXPECT_EQ("sha256:" + std::filesystem::path(data_files()[0]).stem().string(), erofs::digest_of_file(files.data[0].get()).value());
}

TEST_F(LayerStoreTest, SharesDataBetweenLayersAndRemovesItWithTheLast) {
  const model::LayerRecord first = imported(long_text());
  const auto second = import_tar(TarFixture().file("g", long_text()).finished());
  ASSERT_TRUE(second.ok()) << second.error().message();
  ASSERT_NE(first.digest, second->digest);
  EXPECT_EQ(data_files().size(), 1u);

  ASSERT_TRUE(store_->remove(first.digest).ok());

  EXPECT_EQ(content(store_->mount(second->digest).value(), "g"), long_text());
  open();
  EXPECT_EQ(data_files().size(), 1u);
  ASSERT_TRUE(store_->remove(second->digest).ok());
  EXPECT_TRUE(leftovers().empty());
}

TEST_F(LayerStoreTest, FindsAChangedByteOfTheData) {
  const model::LayerRecord record = imported(long_text());
  change_byte(data_files()[0], 4000);

  const auto verified = store_->verify(record.digest);

  ASSERT_FALSE(verified.ok());
  EXPECT_EQ(verified.error().code(), ErrorCode::kDataFault);
}

TEST_F(LayerStoreTest, LeavesOutALayerWhoseDataIsCutOrGone) {
  const model::LayerRecord record = imported(long_text());
  const std::string data = std::filesystem::path(data_files()[0]).stem();
  ASSERT_EQ(::truncate(data_files()[0].c_str(), 100), 0);
  open();
  EXPECT_TRUE(store_->list().empty());
  EXPECT_EQ(store_->notes().size(), 1u);
  EXPECT_EQ(data_files().size(), 1u);  // for a person to look at

  std::filesystem::remove(data_files()[0]);
  open();
  EXPECT_TRUE(store_->list().empty());
  EXPECT_TRUE(std::filesystem::exists(image_of(record)));

  ASSERT_TRUE(sys::replace_file(directory_ + "/layers/" + data + ".data", "cut", 0600).ok());
  EXPECT_EQ(imported(long_text()).digest, record.digest);  // an import mends it
  EXPECT_EQ(content(store_->mount(record.digest).value(), "f"), long_text());
}

TEST_F(LayerStoreTest, RefusesDataThatTheMetadataDoesNotName) {
  const model::LayerRecord record = imported(long_text());
  const ImageFiles image = loose_copy(record);
  ASSERT_TRUE(store_->remove(record.digest).ok());
  const ImageFiles foreign{image.metadata, directory_ + "/import/foreign"};
  ASSERT_TRUE(sys::replace_file(foreign.data, std::string(12288, '?'), 0600).ok());
  const ImageFiles without{image.metadata, directory_ + "/import/empty"};
  ASSERT_TRUE(sys::replace_file(without.data, "", 0600).ok());

  for (const ImageFiles& wrong : {foreign, without}) {
    const auto published = store_->publish(wrong, {});
    ASSERT_FALSE(published.ok());
    EXPECT_EQ(published.error().code(), ErrorCode::kDataFault);
  }
  EXPECT_TRUE(data_files().empty());
  EXPECT_TRUE(store_->list().empty());
}

TEST_F(LayerStoreTest, MendsWhatACrashLeftBetweenDataMetadataAndRecord) {
  const model::LayerRecord record = imported(long_text());
  const std::string record_file = directory_ + "/layers/" + record.digest.substr(7) + ".json";
  std::filesystem::remove(record_file);  // stopped before the record

  open();

  EXPECT_TRUE(leftovers().empty());
  const model::LayerRecord again = imported(long_text());
  EXPECT_EQ(again.digest, record.digest);
  std::filesystem::remove(record_file);
  std::filesystem::remove(image_of(record));  // stopped before the metadata
  open();
  EXPECT_TRUE(leftovers().empty());
}

// A layer of before: one file that mkfs.erofs made.
TEST_F(LayerStoreTest, MountsALayerOfTheEarlierForm) {
  if (std::system("command -v mkfs.erofs > /dev/null") != 0) GTEST_SKIP() << "mkfs.erofs is not installed";
  std::filesystem::create_directory(directory_ + "/tree");
  ASSERT_TRUE(sys::replace_file(directory_ + "/tree/f", long_text(), 0644).ok());
  ASSERT_EQ(std::system(("mkfs.erofs --quiet -zlz4 " + directory_ + "/old " + directory_ + "/tree").c_str()), 0);
  model::LayerRecord record = imported();
  {
    const sys::Fd image = sys::open_at(AT_FDCWD, directory_ + "/old", O_RDONLY).value();
    record.digest = erofs::digest_of_file(image.get()).value();
  }
  record.size_bytes = std::filesystem::file_size(directory_ + "/old");
  const std::string name = directory_ + "/layers/" + record.digest.substr(7);
  std::filesystem::copy_file(directory_ + "/old", name + ".erofs");
  ASSERT_TRUE(sys::replace_file(name + ".json", boost::json::serialize(model::to_json(record)), 0644).ok());

  open();

  EXPECT_EQ(content(store_->mount(record.digest).value(), "f"), long_text());
  EXPECT_TRUE(store_->verify(record.digest).ok());
  EXPECT_TRUE(store_->open_files(record.digest).value().data.empty());
  ASSERT_TRUE(store_->remove(record.digest).ok());
  EXPECT_FALSE(std::filesystem::exists(name + ".erofs"));
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
