// What the writer makes, as the kernel shows it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/mount.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "erofs/checker.h"
#include "erofs/format.h"
#include "erofs/writer.h"
#include "image/erofs_mount.h"
#include "root/support/engine.h"
#include "root/support/tree_model.h"
#include "sys/file.h"
#include "sys/mounts.h"

namespace dsec {
namespace {

using erofs::Profile;
using erofs::Writer;
using erofs::WriterOptions;

// One image: its two files in a directory of their own.
struct Image {
  std::string metadata;
  std::string data;
  erofs::WrittenImage written;
  erofs::ParentData as_parent;
};

class ErofsWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root: mounts";
  }
  template <typename Fill>
  Image make(const std::string& name, WriterOptions options, Fill fill) {
    Image image{scratch_.path() + "/" + name + ".meta", scratch_.path() + "/" + name + ".data", {}, {}};
    const sys::Fd metadata = sys::open_at(AT_FDCWD, image.metadata, O_RDWR | O_CREAT | O_TRUNC, 0600).value();
    const sys::Fd data = sys::open_at(AT_FDCWD, image.data, O_RDWR | O_CREAT | O_TRUNC, 0600).value();
    const bool for_children = options.keep_digests;
    Writer writer(metadata.get(), data.get(), std::move(options));
    const Result<void> filled = fill(writer);
    EXPECT_TRUE(filled.ok()) << filled.error().message();
    image.written = writer.finish({.unstated_seconds = 77, .identity = "test"}).value();
    const auto verdict = erofs::check_image(erofs::FileSource::open(sys::open_at(AT_FDCWD, image.metadata, O_RDONLY).value()).value());
    EXPECT_TRUE(verdict->sound()) << verdict->problem->text();
    if (for_children) image.as_parent = writer.as_parent();
    return image;
  }
  Image make(const std::string& name, WriterOptions options, const TreeModel& model) {
    return make(name, std::move(options), [&](Writer& writer) { return model.give_to(writer); });
  }
  // A path that leads into the mount.
  std::string mounted(const std::string& metadata, const std::vector<std::string>& devices) {
    auto mount = image::mount_erofs(metadata, devices);
    EXPECT_TRUE(mount.ok()) << mount.error().message();
    if (!mount.ok()) return "/nowhere";
    mounts_.push_back(std::move(mount->mount));
    return "/proc/self/fd/" + std::to_string(mounts_.back().get());
  }
  std::string mounted(const Image& image) { return mounted(image.metadata, image.written.data_bytes == 0 ? std::vector<std::string>() : std::vector{image.data}); }
  std::string concatenated(const Image& image) {
    const std::string whole = image.metadata + ".whole";
    std::ofstream out(whole, std::ios::binary);
    for (const std::string& part : {image.metadata, image.data}) {
      if (std::filesystem::file_size(part) != 0) out << std::ifstream(part, std::ios::binary).rdbuf();
    }
    out.close();
    return mounted(whole, {});
  }
  static std::string bytes_of(const std::string& path) { return sys::read_file(path, 1 << 30).value(); }

  testing::ScratchDirectory scratch_;
  std::vector<sys::Fd> mounts_;
};

TEST_F(ErofsWriterTest, ShowsRandomTreesAsTheyWereGiven) {
  for (std::uint64_t seed = 1; seed <= 6; seed++) {
    const TreeModel model = TreeModel::random(seed);
    for (const Profile profile : {Profile::kPlain, Profile::kLz4}) {
      const Image image = make("random", {.profile = profile, .lz4_level = seed % 2 == 0 ? 0 : 9}, model);

      ASSERT_EQ(model.compare(mounted(image)), "") << "seed " << seed << " split";
      ASSERT_EQ(model.compare(concatenated(image)), "") << "seed " << seed << " in one file";
      mounts_.clear();
    }
  }
}

TEST_F(ErofsWriterTest, MakesEqualBytesOfEqualEntries) {
  for (const Profile profile : {Profile::kPlain, Profile::kLz4}) {
    const TreeModel model = TreeModel::random(99);
    const Image first = make("first", {.profile = profile}, model);
    const Image second = make("second", {.profile = profile}, model);

    EXPECT_EQ(bytes_of(first.metadata), bytes_of(second.metadata));
    EXPECT_EQ(bytes_of(first.data), bytes_of(second.data));
  }
}

TEST_F(ErofsWriterTest, HoldsEverySizeAroundABlockAndAPiece) {
  TreeModel model;
  for (const std::size_t size : {0, 1, 2047, 2048, 2049, 4095, 4096, 4097, 8191, 8192, 65535, 65536, 65537, 131072, 1048575, 1048576, 1048577, 3000000}) {
    model.file("same-" + std::to_string(size), std::string(size, 'x'));
    std::string mixed(size, '\0');
    for (std::size_t i = 0; i < size; i++) mixed[i] = static_cast<char>(i * 2654435761U >> (i % 70000 < 40000 ? 13 : 31));
    model.file("mixed-" + std::to_string(size), mixed, {.mode = 04755, .attributes = {{"user.size", std::to_string(size)}}});
  }
  for (const std::size_t length : {1, 59, 60, 300, 3500}) model.symlink("link-" + std::to_string(length), std::string(length, 'l'));
  model.file("capable", "x", {.attributes = {{"security.capability", std::string("\x01\x00\x00\x02\x00\x20", 6) + std::string(14, '\0')}, {"user.long", std::string(5000, 'v')}}});
  model.directory("marked", {.attributes = {{"user.empty", ""}, {"user.x", std::string(4000, 'y')}}});
  model.file("marked/inside", "y");

  for (const Profile profile : {Profile::kPlain, Profile::kLz4}) {
    const Image image = make("sizes", {.profile = profile}, model);

    EXPECT_EQ(model.compare(mounted(image)), "");
    EXPECT_EQ(model.compare(concatenated(image)), "");
  }
}

TEST_F(ErofsWriterTest, ShowsATailOfEveryLength) {
  TreeModel model;
  for (std::size_t tail = 1; tail < 4096; tail++) {
    std::string content((tail % 4) * 4096 + tail, '\0');
    for (std::size_t i = 0; i < content.size(); i++) content[i] = static_cast<char>((i + tail) * 2654435761U >> 11);
    model.file(std::to_string(tail), content, {.mtime_seconds = 1'700'000'000 + static_cast<std::int64_t>(tail % 8 / 7)});
  }
  for (const Profile profile : {Profile::kPlain, Profile::kLz4}) {
    const Image image = make("tails", {.profile = profile}, model);

    EXPECT_EQ(model.compare(profile == Profile::kPlain ? mounted(image) : concatenated(image)), "");
  }
}

TEST_F(ErofsWriterTest, HoldsAHundredThousandNamesInOneDirectory) {
  TreeModel model;
  model.directory("many");
  for (int i = 0; i < 100'000; i++) model.file("many/" + std::to_string(i * 7919 % 100'000), std::to_string(i));

  const Image image = make("many", {}, model);

  EXPECT_EQ(model.compare(mounted(image)), "");
  EXPECT_EQ(image.written.data_bytes, 0u);
}

TEST_F(ErofsWriterTest, HoldsAFileOfMoreThanFourGigabytesWithHoles) {
  constexpr std::uint64_t kSize = 5ULL << 30;
  const std::vector<std::pair<std::uint64_t, std::string>> parts = {{0, "start"}, {(4ULL << 30) - 3, "across"}, {kSize - 4, "end."}};
  const Image image = make("large", {}, [&](Writer& writer) -> Result<void> {
    DSEC_TRY(writer.begin_file("large", {}, {.bytes = kSize, .sparse = true}));
    std::uint64_t at = 0;
    for (const auto& [offset, text] : parts) {
      DSEC_TRY(writer.skip(offset - at));
      DSEC_TRY(writer.write(text));
      at = offset + text.size();
    }
    return writer.finish_file();
  });
  EXPECT_LT(image.written.data_bytes, 2u << 20);

  for (const std::string& root : {mounted(image), concatenated(image)}) {
    const sys::Fd file = sys::open_at(AT_FDCWD, root + "/large", O_RDONLY).value();
    struct stat st{};
    ASSERT_EQ(::fstat(file.get(), &st), 0);
    EXPECT_EQ(static_cast<std::uint64_t>(st.st_size), kSize);
    for (const auto& [offset, text] : parts) {
      std::string got(text.size(), '\0');
      EXPECT_EQ(::pread(file.get(), got.data(), got.size(), static_cast<off_t>(offset)), static_cast<ssize_t>(text.size()));
      EXPECT_EQ(got, text);
    }
    std::string hole(1 << 20, 'x');
    EXPECT_EQ(::pread(file.get(), hole.data(), hole.size(), 1LL << 30), 1 << 20);
    EXPECT_EQ(hole, std::string(1 << 20, '\0'));
  }
}

TEST_F(ErofsWriterTest, StoresAFileThatAParentHasOnlyThere) {
  const TreeModel model = TreeModel::random(5);
  TreeModel child = TreeModel::random(5);
  child.file("new", std::string(10'000, 'n'));
  for (const Profile profile : {Profile::kPlain, Profile::kLz4}) {
    const Image parent = make("parent", {.profile = profile, .keep_digests = true}, model);
    const Image alone = make("alone", {.profile = profile}, child);
    const Image image = make("child", {.profile = profile, .parents = {parent.as_parent}}, child);

    EXPECT_LT(image.written.data_bytes, alone.written.data_bytes / 2);
    EXPECT_EQ(child.compare(mounted(image.metadata, {image.data, parent.data})), "");
    std::ofstream whole(image.metadata + ".whole", std::ios::binary);
    for (const std::string& part : {image.metadata, image.data, parent.data}) whole << std::ifstream(part, std::ios::binary).rdbuf();
    whole.close();
    EXPECT_EQ(child.compare(mounted(image.metadata + ".whole", {})), "");
  }
}

// The same change, once as two of our layers and once as two directories.
class OverlayTest : public ErofsWriterTest {
 protected:
  void SetUp() override {
    ErofsWriterTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
  }
  std::string overlay(const std::vector<std::string>& lower) {
    auto context = sys::FilesystemContext::open("overlay").value();
    for (auto layer = lower.rbegin(); layer != lower.rend(); ++layer) {
      const Result<void> added = context.set("lowerdir+", *layer);
      EXPECT_TRUE(added.ok()) << added.error().message();
    }
    auto mount = context.mount(MOUNT_ATTR_RDONLY);
    EXPECT_TRUE(mount.ok()) << mount.error().message();
    mounts_.push_back(std::move(mount).value());
    return "/proc/self/fd/" + std::to_string(mounts_.back().get());
  }
  void write(const std::string& path, const std::string& text) { ASSERT_TRUE(sys::replace_file(path, text, 0644).ok()); }
  void whiteout(const std::string& path) { ASSERT_EQ(::mknod(path.c_str(), S_IFCHR, ::makedev(0, 0)), 0); }
};

TEST_F(OverlayTest, HidesWhatAWhiteoutNamesAndShowsNoGhosts) {
  TreeModel base;
  for (const char* name : {"kept", "gone", "cleared", "replaced"}) {
    base.directory(name);
    base.file(std::string(name) + "/a", "a", {.mode = 0644});
    base.file(std::string(name) + "/b", "b", {.mode = 0644});
  }
  const Image lower = make("lower", {}, base);
  const Image upper = make("upper", {}, [](Writer& writer) -> Result<void> {
    DSEC_TRY(writer.make_whiteout("kept/a"));
    DSEC_TRY(writer.make_whiteout("gone"));
    DSEC_TRY(writer.make_opaque("cleared"));
    DSEC_TRY(writer.make_directory("cleared", {}));
    DSEC_TRY(writer.make_whiteout("cleared/nothing"));
    DSEC_TRY(writer.make_directory("new", {}));
    DSEC_TRY(writer.make_whiteout("new/ghost"));  // hides nothing: the directory is merged with none
    DSEC_TRY(writer.begin_file("new/c", {.mode = 0644}, {.bytes = 1}));
    DSEC_TRY(writer.write("c"));
    DSEC_TRY(writer.finish_file());
    DSEC_TRY(writer.begin_file("replaced", {.mode = 0644}, {.bytes = 1}));
    DSEC_TRY(writer.write("r"));
    return writer.finish_file();
  });
  const std::string plain_lower = scratch_.path() + "/plain-lower";
  const std::string plain_upper = scratch_.path() + "/plain-upper";
  for (const char* name : {"kept", "gone", "cleared", "replaced"}) {
    ASSERT_TRUE(std::filesystem::create_directories(plain_lower + "/" + name));
    write(plain_lower + "/" + name + "/a", "a");
    write(plain_lower + "/" + name + "/b", "b");
  }
  for (const char* name : {"kept", "cleared", "new"}) ASSERT_TRUE(std::filesystem::create_directories(plain_upper + "/" + name));
  whiteout(plain_upper + "/kept/a");
  whiteout(plain_upper + "/gone");
  ASSERT_EQ(::setxattr((plain_upper + "/cleared").c_str(), "trusted.overlay.opaque", "y", 1, 0), 0);
  write(plain_upper + "/new/c", "c");
  write(plain_upper + "/replaced", "r");

  const auto ours = listing(overlay({mounted(lower), mounted(upper)}));
  const auto plain = listing(overlay({plain_lower, plain_upper}));

  EXPECT_EQ(ours, plain);
  EXPECT_FALSE(ours.contains("new/ghost"));
  EXPECT_FALSE(ours.contains("kept/a"));
  EXPECT_FALSE(ours.contains("cleared/a"));
  EXPECT_EQ(ours.at("replaced"), "33188 0 r");
}

}  // namespace
}  // namespace dsec
