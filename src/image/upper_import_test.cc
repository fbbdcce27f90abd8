// A sandbox's upper as a layer: what the worker reads, refuses and may.
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "image/image_fixture.h"
#include "image/layer_view.h"
#include "image/verifier_rules.h"

namespace dsec::image {
namespace {

constexpr unsigned kFirstId = 300'000;

class UpperImportTest : public ImageTest {
 protected:
  void SetUp() override {
    ImageTest::SetUp();
    if (IsSkipped()) return;
    upper_ = directory_ + "/upper";
    std::filesystem::create_directory(upper_);
    own("");
  }
  void own(const std::string& path) const { ASSERT_EQ(::lchown((upper_ + "/" + path).c_str(), kFirstId, kFirstId), 0) << path; }
  void write(const std::string& path, const std::string& text) const {
    ASSERT_TRUE(sys::replace_file(upper_ + "/" + path, text, 0644).ok());
    own(path);
  }
  PackOptions options() const {
    PackOptions out;
    out.ids = {kFirstId, 0, 65536};
    out.provenance = {.sandbox = "box", .generation = 1, .project = "team", .by = "key_x", .parents = {"sha256:" + std::string(64, 'a')}};
    return out;
  }
  Result<model::LayerRecord> pack(const PackOptions& options) {
    const sys::Fd directory = sys::open_at(AT_FDCWD, upper_, O_RDONLY | O_DIRECTORY).value();
    return importer_->pack(directory.get(), options);
  }

  std::string upper_;
};

TEST_F(UpperImportTest, KeepsOwnersWhiteoutsAndWhatReplacesADirectoryBelow) {
  write("file", "content");
  ASSERT_EQ(::mknod((upper_ + "/gone").c_str(), S_IFCHR, ::makedev(0, 0)), 0);
  std::filesystem::create_directory(upper_ + "/new");
  own("new");
  ASSERT_EQ(::setxattr((upper_ + "/new").c_str(), "trusted.overlay.opaque", "y", 1, 0), 0);

  const auto record = pack(options());

  ASSERT_TRUE(record.ok()) << record.error().message();
  EXPECT_EQ(record->kind, model::LayerKind::kDiff);
  EXPECT_EQ(record->provenance, options().provenance);
  auto reader = open_reader(*store_, record->digest);
  ASSERT_TRUE(reader.ok()) << reader.error().message();
  EXPECT_EQ(reader->lookup("/file")->uid, 0u);
  EXPECT_TRUE(reader->lookup("/gone")->is_device());
  const auto attributes = reader->attributes(*reader->lookup("/new"));
  ASSERT_TRUE(attributes.ok());
  ASSERT_EQ(attributes->size(), 1u);
  EXPECT_EQ(attributes->at(0).name, "trusted.overlay.opaque");
}

TEST_F(UpperImportTest, RefusesWhatNoLayerCanSayAndLeavesNothing) {
  struct Case {
    const char* attribute;
    dev_t device;
  };
  for (const Case& one : {Case{"trusted.overlay.redirect", 0}, Case{"trusted.overlay.metacopy", 0}, Case{nullptr, ::makedev(1, 3)}}) {
    std::filesystem::remove_all(upper_ + "/odd");
    if (one.attribute != nullptr) {
      write("odd", "x");
      ASSERT_EQ(::setxattr((upper_ + "/odd").c_str(), one.attribute, "/etc", 4, 0), 0);
    } else {
      ASSERT_EQ(::mknod((upper_ + "/odd").c_str(), S_IFCHR, one.device), 0);
    }

    const auto record = pack(options());

    ASSERT_FALSE(record.ok());
    EXPECT_EQ(record.error().code(), ErrorCode::kUnsupported) << record.error().message();
    EXPECT_TRUE(leftovers().empty());
  }
}

TEST_F(UpperImportTest, RefusesAnOwnerThatIsNotTheSandboxs) {
  write("file", "x");
  ASSERT_EQ(::chown((upper_ + "/file").c_str(), kFirstId + 65536, 0), 0);

  const auto record = pack(options());

  ASSERT_FALSE(record.ok());
  EXPECT_EQ(record.error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(UpperImportTest, TellsPacksOfTwoProjectsAndOverTwoBasesApart) {
  write("file", "the same");
  PackOptions other_project = options();
  other_project.provenance.project = "others";
  PackOptions other_base = options();
  other_base.provenance.parents = {"sha256:" + std::string(64, 'b')};

  const auto first = pack(options());

  EXPECT_EQ(first->digest, pack(options())->digest);
  EXPECT_NE(first->digest, pack(other_project)->digest);
  EXPECT_NE(first->digest, pack(other_base)->digest);
}

TEST_F(UpperImportTest, NamesWhereResidueIsAndTakesWhatIsAllowedOrRemoved) {
  write("secret", "...12345678...");
  PackOptions guarded = options();
  guarded.residue = {{"token", "12345678"}};

  const auto refused = pack(guarded);
  guarded.allow = {"/secret"};
  const auto allowed = pack(guarded);
  guarded.allow.clear();
  guarded.remove = {"sec*"};
  const auto removed = pack(guarded);

  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kConflict);
  EXPECT_NE(refused.error().message().find("/secret (token)"), std::string::npos) << refused.error().message();
  EXPECT_TRUE(allowed.ok());
  EXPECT_EQ(removed->entries, 0u);
}

TEST_F(UpperImportTest, ReadsALargeFileWithAHole) {
  const std::string text(3 << 20, 'y');
  write("large", text);
  ASSERT_EQ(::truncate((upper_ + "/large").c_str(), 10 << 20), 0);

  const auto record = pack(options());

  ASSERT_TRUE(record.ok()) << record.error().message();
  EXPECT_EQ(record->content_bytes, 10u << 20);
}

TEST_F(UpperImportTest, FindsTheFilesOfAVerifierLayerAndNeverMountsIt) {
  const std::string hidden = "def test_hidden(): assert solve(41) == 42";
  ImportOptions verifier{.kind = model::LayerKind::kVerifier};
  const auto tests = import_tar(TarFixture().file("t/test.py", hidden).file("t/short", "x").finished(), verifier);
  ASSERT_TRUE(tests.ok()) << tests.error().message();

  const auto rules = verifier_rules(*store_, tests->digest, "hidden");

  ASSERT_TRUE(rules.ok()) << rules.error().message();
  EXPECT_EQ(*rules, (std::vector<ResidueRule>{{"hidden", hidden}}));
  EXPECT_EQ(store_->mount(tests->digest).error().code(), ErrorCode::kPermissionDenied);
}

TEST_F(UpperImportTest, LeavesTheReaderNothingToDoButToRead) {
  const auto facts = importer_->probe(WorkerUsers::kHost);

  ASSERT_TRUE(facts.ok()) << facts.error().message();
  EXPECT_EQ(facts->at("capabilities"), std::to_string(1ULL << CAP_SYS_ADMIN | 1ULL << CAP_DAC_READ_SEARCH));
  EXPECT_EQ(facts->at("pid"), "1");
  for (const char* closed : {"shadow", "host_root", "write_usr", "write_root", "write_work", "internet_socket", "unix_socket", "namespace", "mount", "trace", "device"})
    EXPECT_EQ(facts->at(closed), "Function not implemented") << closed;
  EXPECT_TRUE(leftovers().empty());
}

}  // namespace
}  // namespace dsec::image
