// Real trees, written by our writer, taken by our checker, and read twice: by
// the kernel through a mount and by our reader. Both must show the same.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "erofs/checker.h"
#include "erofs/hot_layout.h"
#include "erofs/reader.h"
#include "erofs/tree_walk.h"
#include "erofs/writer.h"
#include "image/erofs_mount.h"
#include "root/support/engine.h"
#include "sys/file.h"

namespace dsec {
namespace {

namespace fs = std::filesystem;
using erofs::Profile;

constexpr std::size_t kPiece = 256 << 10;

erofs::EntryMeta meta_of(const struct stat& st) {
  return {.mode = st.st_mode & 07777, .uid = st.st_uid, .gid = st.st_gid, .mtime_seconds = st.st_mtim.tv_sec, .mtime_nanoseconds = st.st_mtim.tv_nsec, .attributes = {}};
}

Result<void> give_file(erofs::EntrySink& sink, const std::string& from, const std::string& path, const struct stat& st) {
  DSEC_ASSIGN(const sys::Fd file, sys::open_at(AT_FDCWD, from, O_RDONLY | O_NOFOLLOW));
  DSEC_TRY(sink.begin_file(path, meta_of(st), {.bytes = static_cast<std::uint64_t>(st.st_size), .sparse = false}));
  std::string piece(kPiece, '\0');
  for (off_t at = 0; at < st.st_size;) {
    const ssize_t got = ::pread(file.get(), piece.data(), std::min<std::size_t>(piece.size(), static_cast<std::size_t>(st.st_size - at)), at);
    if (got <= 0) return errno_error(from, errno);
    DSEC_TRY(sink.write(std::string_view(piece).substr(0, static_cast<std::size_t>(got))));
    at += got;
  }
  return sink.finish_file();
}

Result<void> give_tree(erofs::EntrySink& sink, const std::string& root) {
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string from = entry.path();
    const std::string path = from.substr(1);
    struct stat st{};
    if (::lstat(from.c_str(), &st) != 0) return errno_error(from, errno);
    if (S_ISDIR(st.st_mode)) DSEC_TRY(sink.make_directory(path, meta_of(st)));
    if (S_ISLNK(st.st_mode)) DSEC_TRY(sink.make_symlink(path, fs::read_symlink(entry.path()), meta_of(st)));
    if (S_ISREG(st.st_mode)) DSEC_TRY(give_file(sink, from, path, st));
  }
  return {};
}

std::string text_of(const struct stat& st) {
  return std::to_string(st.st_mode) + " " + std::to_string(st.st_uid) + ":" + std::to_string(st.st_gid) + " " + std::to_string(st.st_mtim.tv_sec) + "." +
         std::to_string(st.st_mtim.tv_nsec) + " links " + std::to_string(st.st_nlink) + " size " + std::to_string(S_ISDIR(st.st_mode) ? 0 : st.st_size);
}

std::string text_of(const erofs::StoredInode& node) {
  return std::to_string(node.mode) + " " + std::to_string(node.uid) + ":" + std::to_string(node.gid) + " " + std::to_string(node.seconds) + "." +
         std::to_string(node.nanoseconds) + " links " + std::to_string(node.links) + " size " + std::to_string(node.is_directory() ? 0 : node.size);
}

class ErofsReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root: mounts";
    metadata_ = scratch_.path() + "/image.meta";
    data_ = scratch_.path() + "/image.data";
  }

  void write(const std::vector<std::string>& roots, Profile profile) {
    const sys::Fd metadata = sys::open_at(AT_FDCWD, metadata_, O_RDWR | O_CREAT | O_TRUNC, 0600).value();
    const sys::Fd data = sys::open_at(AT_FDCWD, data_, O_RDWR | O_CREAT | O_TRUNC, 0600).value();
    erofs::Writer writer(metadata.get(), data.get(), {.profile = profile});
    for (const std::string& root : roots) {
      const Result<void> given = give_tree(writer, root);
      ASSERT_TRUE(given.ok()) << given.error().message();
    }
    ASSERT_TRUE(writer.finish({.unstated_seconds = 1, .identity = "test"}).ok());
  }

  static std::unique_ptr<erofs::FileSource> source(const std::string& path) {
    return erofs::FileSource::open(sys::open_at(AT_FDCWD, path, O_RDONLY).value()).value();
  }

  void check() {
    const auto begun = std::chrono::steady_clock::now();
    const erofs::Verdict verdict = erofs::check_image(source(metadata_), {fs::file_size(data_)}).value();
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begun);
    ASSERT_TRUE(verdict.sound()) << verdict.problem->text();
    std::printf("%zu inodes, %zu bytes of metadata, %zu of content: checked in %lld ms\n", static_cast<std::size_t>(verdict.facts.inodes),
                static_cast<std::size_t>(fs::file_size(metadata_)), static_cast<std::size_t>(verdict.facts.content_bytes), static_cast<long long>(took.count()));
  }

  // What the kernel shows of every entry that the reader finds, and the other way round.
  void compare() {
    auto mount = image::mount_erofs(metadata_, {data_});
    ASSERT_TRUE(mount.ok()) << mount.error().message();
    const std::string root = "/proc/self/fd/" + std::to_string(mount->mount.get());
    std::vector<std::unique_ptr<erofs::Source>> devices;
    devices.push_back(source(data_));
    erofs::Reader reader = erofs::Reader::open(source(metadata_), std::move(devices)).value();
    erofs::TreeWalk walk = erofs::TreeWalk::begin(reader, "/", erofs::Depth::kAll).value();
    std::size_t entries = 0;
    while (true) {
      Result<std::optional<erofs::TreeWalk::Entry>> next = walk.next();
      ASSERT_TRUE(next.ok()) << next.error().message();
      if (!*next) break;
      entries++;
      const std::string& path = (*next)->path;
      struct stat st{};
      ASSERT_EQ(::lstat((root + path).c_str(), &st), 0) << path;
      ASSERT_EQ(text_of((*next)->node), text_of(st)) << path;
      if (S_ISLNK(st.st_mode)) ASSERT_EQ(reader.link_target((*next)->node).value(), fs::read_symlink(root + path).string()) << path;
      if (S_ISREG(st.st_mode)) ASSERT_NO_FATAL_FAILURE(compare_content(reader, (*next)->node, root + path));
    }
    std::size_t shown = 0;
    for ([[maybe_unused]] const auto& entry : fs::recursive_directory_iterator(root + "/.")) shown++;
    EXPECT_EQ(entries, shown);
    EXPECT_GT(entries, 50u);
  }

  static void compare_content(erofs::Reader& reader, const erofs::StoredInode& node, const std::string& path) {
    const sys::Fd file = sys::open_at(AT_FDCWD, path, O_RDONLY).value();
    std::string ours(kPiece, '\0');
    std::string kernels(kPiece, '\0');
    for (std::uint64_t at = 0;;) {
      const Result<std::size_t> got = reader.read(node, at, ours);
      ASSERT_TRUE(got.ok()) << path << ": " << got.error().message();
      const ssize_t expected = ::pread(file.get(), kernels.data(), kernels.size(), static_cast<off_t>(at));
      ASSERT_EQ(static_cast<ssize_t>(*got), expected) << path;
      ASSERT_TRUE(std::equal(ours.begin(), ours.begin() + expected, kernels.begin())) << path << " near byte " << at;
      if (expected == 0) return;
      at += *got;
    }
  }

  void prove(const std::string& what, const std::vector<std::string>& roots) {
    std::vector<std::string> there;
    for (const std::string& root : roots)
      if (fs::exists(root)) there.push_back(root);
    if (there.empty()) GTEST_SKIP() << "no " << what << " on this machine";
    for (const Profile profile : {Profile::kPlain, Profile::kLz4}) {
      ASSERT_NO_FATAL_FAILURE(write(there, profile));
      ASSERT_NO_FATAL_FAILURE(check());
      ASSERT_NO_FATAL_FAILURE(compare());
    }
  }

  // What is at hand, with these parts of its data first.
  void lay_out_anew(std::uint32_t every, std::uint32_t blocks) {
    std::vector<erofs::TouchedRun> touched;
    const auto all = static_cast<std::uint32_t>(fs::file_size(data_) / 4096);
    for (std::uint32_t block = 3; block + blocks < all; block += every) touched.push_back({1, {block, blocks}});
    std::vector<std::unique_ptr<erofs::Source>> devices;
    devices.push_back(source(data_));
    erofs::Reader layer = erofs::Reader::open(source(metadata_), std::move(devices)).value();
    const sys::Fd metadata = sys::open_at(AT_FDCWD, metadata_ + ".hot", O_RDWR | O_CREAT | O_TRUNC, 0600).value();
    const sys::Fd data = sys::open_at(AT_FDCWD, data_ + ".hot", O_RDWR | O_CREAT | O_TRUNC, 0600).value();
    erofs::Writer writer(metadata.get(), data.get(), {});
    const auto counts = erofs::lay_out_by_touch(layer, touched, {}, writer);
    ASSERT_TRUE(counts.ok()) << counts.error().message();
    ASSERT_TRUE(writer.finish({.unstated_seconds = 1, .identity = "test"}).ok());
    std::printf("%zu MiB of %zu touched, %zu hot, %zu files split\n", static_cast<std::size_t>(counts->touched_bytes >> 20), static_cast<std::size_t>(counts->data_bytes >> 20),
                static_cast<std::size_t>(counts->hot_bytes >> 20), static_cast<std::size_t>(counts->split_files));
    EXPECT_EQ(fs::file_size(data_), fs::file_size(data_ + ".hot"));
    metadata_ += ".hot";
    data_ += ".hot";
  }

  testing::ScratchDirectory scratch_;
  std::string metadata_;
  std::string data_;
};

TEST_F(ErofsReaderTest, ADebianTreeReadsAsTheKernelReadsIt) { prove("Debian tree", {"/etc", "/usr/sbin", "/usr/share/doc", "/var/lib/dpkg"}); }

TEST_F(ErofsReaderTest, ATreeOfNodeModulesReadsAsTheKernelReadsIt) { prove("node_modules", {"/usr/lib/node_modules", "/usr/share/nodejs"}); }

TEST_F(ErofsReaderTest, PythonPackagesReadAsTheKernelReadsThem) { prove("Python packages", {"/usr/lib/python3", "/usr/lib/python3.11"}); }

TEST_F(ErofsReaderTest, ACompilerToolchainReadsAsTheKernelReadsIt) { prove("compiler", {"/usr/lib/gcc", "/usr/lib/llvm-19"}); }

TEST_F(ErofsReaderTest, ATreeThatIsLaidOutByTouchReadsAsBefore) {
  for (const Profile profile : {Profile::kPlain, Profile::kLz4}) {
    metadata_ = scratch_.path() + "/image.meta";
    data_ = scratch_.path() + "/image.data";
    ASSERT_NO_FATAL_FAILURE(write({"/usr/lib/python3.11", "/usr/lib/gcc"}, profile));
    const std::string original = metadata_;
    const std::string original_data = data_;
    ASSERT_NO_FATAL_FAILURE(lay_out_anew(400, 21));
    ASSERT_NO_FATAL_FAILURE(check());
    ASSERT_NO_FATAL_FAILURE(compare());

    auto before = image::mount_erofs(original, {original_data});
    auto after = image::mount_erofs(metadata_, {data_});
    ASSERT_TRUE(before.ok() && after.ok());
    const std::string mounts = "/proc/" + std::to_string(::getpid()) + "/fd/";
    const std::string from = mounts + std::to_string(before->mount.get()) + "/";
    const std::string to = mounts + std::to_string(after->mount.get()) + "/";
    EXPECT_EQ(std::system(("diff -r --no-dereference " + from + " " + to).c_str()), 0);
  }
}

}  // namespace
}  // namespace dsec
