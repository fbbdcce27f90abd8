// Trees of the host as layers: what stands in an overlay's upper, written as a
// layer and laid over the same lower one, shows what the overlay showed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/mount.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "erofs/checker.h"
#include "erofs/directory_input.h"
#include "image/erofs_mount.h"
#include "root/support/engine.h"
#include "root/support/tree_model.h"
#include "sys/file.h"
#include "sys/mounts.h"

namespace dsec {
namespace {

namespace fs = std::filesystem;
using Form = erofs::DirectoryInputOptions::Form;

class DirectoryInputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root: mounts";
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    for (const char* name : {"upper", "work", "tree"}) fs::create_directory(at(name));
  }
  std::string at(const std::string& name) const { return scratch_.path() + "/" + name; }

  // An image of what `fill` gives, mounted.
  template <typename Fill>
  Result<std::string> image(const std::string& name, Fill fill) {
    const sys::Fd metadata = sys::open_at(AT_FDCWD, at(name + ".meta"), O_RDWR | O_CREAT | O_TRUNC, 0600).value();
    const sys::Fd data = sys::open_at(AT_FDCWD, at(name + ".data"), O_RDWR | O_CREAT | O_TRUNC, 0600).value();
    erofs::Writer writer(metadata.get(), data.get(), {});
    DSEC_TRY(fill(writer));
    DSEC_ASSIGN(const erofs::WrittenImage written, writer.finish({}));
    const auto verdict = erofs::check_image(erofs::FileSource::open(sys::duplicate(metadata.get()).value()).value());
    if (!verdict->sound()) return Error(ErrorCode::kDataFault, verdict->problem->text());
    std::vector<std::string> devices;
    if (written.data_bytes != 0) devices.push_back(at(name + ".data"));
    DSEC_ASSIGN(auto mount, image::mount_erofs(at(name + ".meta"), devices));
    return keep(std::move(mount.mount));
  }
  Result<std::string> pack(const std::string& name, const std::string& tree, const erofs::DirectoryInputOptions& options) {
    const sys::Fd root = sys::open_at(AT_FDCWD, tree, O_RDONLY | O_DIRECTORY).value();
    return image(name, [&](erofs::Writer& writer) -> Result<void> {
      DSEC_ASSIGN(counts_, erofs::add_directory(writer, root.get(), options));
      return {};
    });
  }
  std::string bytes_of(const std::string& name, const std::string& file) const { return sys::read_file(at(name + file), 64 << 20).value(); }
  std::string overlay(const std::vector<std::string>& lower, bool writable, const std::map<std::string, std::string>& more = {}) {
    auto context = sys::FilesystemContext::open("overlay").value();
    for (auto layer = lower.rbegin(); layer != lower.rend(); ++layer) EXPECT_TRUE(context.set("lowerdir+", *layer).ok());
    if (writable) {
      EXPECT_TRUE(context.set("upperdir", at("upper")).ok());
      EXPECT_TRUE(context.set("workdir", at("work")).ok());
    }
    for (const auto& [key, value] : more) EXPECT_TRUE(context.set(key.c_str(), value).ok()) << key;
    auto mount = context.mount(writable ? 0 : MOUNT_ATTR_RDONLY);
    EXPECT_TRUE(mount.ok()) << mount.error().message();
    return keep(std::move(mount).value());
  }
  std::string keep(sys::Fd mount) {
    mounts_.push_back(std::move(mount));
    return "/proc/self/fd/" + std::to_string(mounts_.back().get());
  }

  testing::ScratchDirectory scratch_;
  std::vector<sys::Fd> mounts_;
  erofs::DirectoryInputCounts counts_;
};

// What a program might do to a tree; what cannot be done there is left.
class Storm {
 public:
  Storm(std::string root, std::uint64_t seed) : root_(std::move(root)), random_(seed) {}
  void run(int steps) {
    for (int i = 0; i < steps; i++) step();
  }

 private:
  std::size_t below(std::size_t limit) { return std::uniform_int_distribution<std::size_t>(0, limit - 1)(random_); }
  std::string text(std::size_t most) { return std::string(below(most), static_cast<char>('a' + below(26))); }
  std::string any_path() {
    std::vector<std::string> paths = {root_};
    std::error_code ignored;
    for (fs::recursive_directory_iterator it(root_, fs::directory_options::skip_permission_denied, ignored), end; it != end; it.increment(ignored)) paths.push_back(it->path());
    return paths[below(paths.size())];
  }
  std::string new_path() {
    const std::string near = any_path();
    std::error_code ignored;
    return (fs::is_directory(fs::symlink_status(near, ignored)) ? near : fs::path(near).parent_path().string()) + "/n" + std::to_string(below(40));
  }
  void write(const std::string& path, int flags) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0640);
    if (fd < 0) return;
    const std::string bytes = text(20'000);
    if (below(4) == 0) (void)::lseek(fd, static_cast<off_t>(below(1'000'000)), SEEK_SET);
    (void)!::write(fd, bytes.data(), bytes.size());
    ::close(fd);
  }
  void step() {
    std::error_code ignored;
    const std::string path = any_path();
    if (path == root_) return write(new_path(), O_CREAT);
    switch (below(14)) {
      case 0: return write(new_path(), O_CREAT);
      case 1: return write(path, O_TRUNC);
      case 2: return write(path, O_APPEND);
      case 3: (void)::unlink(path.c_str()); return;
      case 4: fs::remove_all(path, ignored); return;
      case 5:
        fs::remove_all(path, ignored);  // what comes in its place hides what was there
        (void)::mkdir(path.c_str(), 0751);
        return write(path + "/fresh", O_CREAT);
      case 6: (void)::rename(path.c_str(), new_path().c_str()); return;
      case 7: (void)::symlink(text(200).append("x").c_str(), new_path().c_str()); return;
      case 8: (void)::link(path.c_str(), new_path().c_str()); return;
      case 9: (void)::fchmodat(AT_FDCWD, path.c_str(), static_cast<mode_t>(below(4096)), AT_SYMLINK_NOFOLLOW); return;
      case 10: (void)::lchown(path.c_str(), static_cast<uid_t>(below(70'000)), static_cast<gid_t>(below(5))); return;
      case 11: (void)::lsetxattr(path.c_str(), "user.note", "n", 1, 0); return;
      case 12: (void)::mkfifo(new_path().c_str(), 0600); return;
      default: (void)::mkdir(new_path().c_str(), 0750); return;
    }
  }

  const std::string root_;
  std::mt19937_64 random_;
};

TEST_F(DirectoryInputTest, AnUpperAsALayerShowsWhatItsOverlayShowed) {
  for (std::uint64_t seed = 1; seed <= 12; seed++) {
    const TreeModel model = TreeModel::random(seed);
    const std::string lower = image("lower", [&](erofs::Writer& writer) { return model.give_to(writer); }).value();
    const std::string merged = overlay({lower}, true, {{"redirect_dir", "nofollow"}, {"metacopy", "off"}, {"index", "off"}});
    Storm(merged, seed).run(250);
    const auto before = listing(merged);

    const auto packed = pack("packed", at("upper"), {.form = Form::kOverlayUpper});
    ASSERT_TRUE(packed.ok()) << "seed " << seed << ": " << packed.error().message();
    const auto after = listing(overlay({lower, *packed}, false));

    ASSERT_EQ(after, before) << "seed " << seed;
    for (const std::size_t held : {std::size_t{1000}, std::size_t{64} << 20}) {
      std::string room(held, '\0');
      ASSERT_TRUE(pack("held", at("upper"), {.form = Form::kOverlayUpper, .hold = room}).ok()) << "seed " << seed;
      for (const char* file : {".meta", ".data"}) EXPECT_EQ(bytes_of("held", file), bytes_of("packed", file)) << "seed " << seed << ", " << held << " bytes held";
    }
    mounts_.clear();
    for (const char* name : {"upper", "work"}) {
      fs::remove_all(at(name));
      fs::create_directory(at(name));
    }
  }
}

TEST_F(DirectoryInputTest, ATreeThatIsHeldMayChangeOnceItWasRead) {
  const std::string tree = at("tree");
  const auto fill = [&](char letter) {
    ASSERT_TRUE(sys::replace_file(tree + "/f", std::string(700'000, letter), 0644).ok());
    ASSERT_TRUE(sys::replace_file(tree + "/g", std::string(10, letter), 0644).ok());
  };
  fill('a');
  ASSERT_TRUE(pack("before", tree, {}).ok());
  const sys::Fd open = sys::open_at(AT_FDCWD, tree + "/f", O_RDWR).value();
  int times = 0;

  const auto change = [&](std::uint64_t bytes) {
    EXPECT_EQ(bytes, 700'010u);
    EXPECT_EQ(::pwrite(open.get(), "b", 1, 5), 1);
    EXPECT_EQ(::unlink((tree + "/g").c_str()), 0);
    EXPECT_EQ(::mkdir((tree + "/new").c_str(), 0755), 0);
    times++;
  };
  std::string room(1 << 20, '\0');
  const auto packed = pack("held", tree, {.hold = room, .on_read = change});

  ASSERT_TRUE(packed.ok()) << packed.error().message();
  EXPECT_EQ(times, 1);
  for (const char* file : {".meta", ".data"}) EXPECT_EQ(bytes_of("held", file), bytes_of("before", file));
}

TEST_F(DirectoryInputTest, RefusesAnUpperThatOnlyPointsIntoItsLowerLayers) {
  const std::string lower = image("lower", [](erofs::Writer& writer) -> Result<void> {
    DSEC_TRY(writer.make_directory("d", {}));
    DSEC_TRY(writer.begin_file("f", {}, {.bytes = 5}));
    DSEC_TRY(writer.write("12345"));
    return writer.finish_file();
  }).value();
  struct Case {
    std::map<std::string, std::string> options;
    std::function<int(const std::string&)> change;
  };
  for (const Case& c : {Case{{{"metacopy", "on"}}, [](const std::string& root) { return ::chmod((root + "/f").c_str(), 0700); }},
                        Case{{{"redirect_dir", "on"}}, [](const std::string& root) { return ::rename((root + "/d").c_str(), (root + "/e").c_str()); }}}) {
    ASSERT_EQ(c.change(overlay({lower}, true, c.options)), 0);

    const auto packed = pack("packed", at("upper"), {.form = Form::kOverlayUpper});

    ASSERT_FALSE(packed.ok());
    EXPECT_EQ(packed.error().code(), ErrorCode::kUnsupported) << packed.error().message();
    mounts_.resize(1);
    for (const char* name : {"upper", "work"}) {
      fs::remove_all(at(name));
      fs::create_directory(at(name));
    }
  }
}

TEST_F(DirectoryInputTest, DropsSocketsAndMarksAndRefusesDevices) {
  const std::string tree = at("tree");
  ASSERT_TRUE(sys::replace_file(tree + "/f", "x", 0644).ok());
  ASSERT_EQ(::setxattr(tree.c_str(), "user.overlay.opaque", "y", 1, 0), 0);
  ASSERT_EQ(::setxattr((tree + "/f").c_str(), "trusted.overlay.origin", "handle", 6, 0), 0);
  ASSERT_EQ(::setxattr((tree + "/f").c_str(), "trusted.other", "x", 1, 0), 0);
  ASSERT_EQ(::setxattr((tree + "/f").c_str(), "user.kept", "v", 1, 0), 0);
  const sys::Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s/s", tree.c_str());
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);

  const auto packed = pack("packed", tree, {.form = Form::kOverlayUpper});

  ASSERT_TRUE(packed.ok()) << packed.error().message();
  EXPECT_EQ(counts_.sockets_dropped, 1u);
  EXPECT_EQ(counts_.attributes_dropped, 1u);
  EXPECT_EQ(listing(*packed).at("f"), "33188 0 x user.kept=v");
  EXPECT_FALSE(listing(*packed).contains("s"));
  for (const dev_t device : {::makedev(1, 3), ::makedev(0, 0)}) {
    ASSERT_EQ(::mknod((tree + "/device").c_str(), S_IFCHR | 0666, device), 0);
    const auto refused = pack("refused", tree, {.form = Form::kDirectory});
    ASSERT_EQ(::unlink((tree + "/device").c_str()), 0);
    EXPECT_EQ(refused.error().code(), ErrorCode::kUnsupported) << "a plain directory has no whiteouts";
  }
}

TEST_F(DirectoryInputTest, UndoesTheShiftOfIds) {
  const std::string tree = at("tree");
  ASSERT_TRUE(sys::replace_file(tree + "/f", "x", 0644).ok());
  ASSERT_EQ(::chown(tree.c_str(), 100'000, 100'000), 0);
  ASSERT_EQ(::chown((tree + "/f").c_str(), 101'000, 100'005), 0);

  const auto packed = pack("packed", tree, {.ids = {{100'000, 0, 65'536}}});

  ASSERT_TRUE(packed.ok()) << packed.error().message();
  struct stat st{};
  ASSERT_EQ(::stat((*packed + "/f").c_str(), &st), 0);
  EXPECT_EQ(st.st_uid, 1000u);
  EXPECT_EQ(st.st_gid, 5u);
  ASSERT_EQ(::chown((tree + "/f").c_str(), 7, 100'000), 0);
  EXPECT_EQ(pack("foreign", tree, {.ids = {{100'000, 0, 65'536}}}).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(DirectoryInputTest, LeavesOutWhatAPatternNames) {
  const std::string tree = at("tree");
  for (const char* directory : {"a", "a/cache", "a/cache/deep", "b", "b/cache"}) fs::create_directory(tree + "/" + directory);
  for (const char* file : {"a/cache/deep/f", "a/keep", "a/x.pyc", "b/cache/g", "b/x.pyc", "x.pyc.txt"}) ASSERT_TRUE(sys::replace_file(tree + "/" + file, "x", 0644).ok());

  const auto packed = pack("packed", tree, {.exclude = {"*.pyc", "a/cache", "/b/c*"}});

  ASSERT_TRUE(packed.ok()) << packed.error().message();
  std::set<std::string> names;
  for (const auto& [path, text] : listing(*packed)) names.insert(path);
  EXPECT_EQ(names, (std::set<std::string>{"", "a", "a/keep", "b", "x.pyc.txt"}));
  EXPECT_EQ(counts_.excluded, 4u);
}

TEST_F(DirectoryInputTest, NeverLeavesTheTree) {
  const std::string tree = at("tree");
  fs::create_directory(at("beside"));
  ASSERT_TRUE(sys::replace_file(at("beside/secret"), "secret", 0600).ok());
  fs::create_directory_symlink(at("beside"), tree + "/link");
  fs::create_directory(tree + "/mounted");
  ASSERT_EQ(listing(pack("packed", tree, {}).value()).at("link").substr(0, 6), std::to_string(S_IFLNK | 0777).substr(0, 5) + " ");

  ASSERT_EQ(::mount(at("beside").c_str(), (tree + "/mounted").c_str(), nullptr, MS_BIND, nullptr), 0);
  EXPECT_EQ(pack("crossing", tree, {}).error().code(), ErrorCode::kInvalidArgument);
  ASSERT_EQ(::umount2((tree + "/mounted").c_str(), MNT_DETACH), 0);
}

TEST_F(DirectoryInputTest, KeepsLimits) {
  const std::string tree = at("tree");
  for (int i = 0; i < 10; i++) ASSERT_TRUE(sys::replace_file(tree + "/" + std::to_string(i), std::string(1000, 'x'), 0644).ok());

  EXPECT_TRUE(pack("fits", tree, {.max_bytes = 10'000, .max_entries = 10}).ok());
  EXPECT_EQ(pack("bytes", tree, {.max_bytes = 9'999}).error().code(), ErrorCode::kTooLarge);
  EXPECT_EQ(pack("entries", tree, {.max_entries = 9}).error().code(), ErrorCode::kTooLarge);
  const std::atomic<bool> cancelled = true;
  EXPECT_EQ(pack("cancelled", tree, {.cancelled = &cancelled}).error().code(), ErrorCode::kCancelled);
}

}  // namespace
}  // namespace dsec
