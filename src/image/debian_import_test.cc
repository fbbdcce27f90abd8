#include <cstdlib>

#include "image/debian_builder.h"
#include "image/image_fixture.h"

namespace dsec::image {
namespace {

TEST(DebianSourcesTest, TurnsTheNodesOwnReleaseAndLeavesOthersOut) {
  const std::string stanzas =
      "Types: deb deb-src\nURIs: http://mirror.test/debian\nSuites: bookworm bookworm-updates\nComponents: main contrib\n"
      "Signed-By: /usr/share/keyrings/archive.gpg\n\n# a comment\nTypes: deb\nURIs: http://mirror.test/security\nSuites: bookworm-security\nComponents: main\n\n"
      "Types: deb\nURIs: http://third.test/node\nSuites: nodistro\nComponents: main\n\n"
      "Enabled: no\nTypes: deb\nURIs: http://off.test/\nSuites: bookworm\nComponents: main\n";
  const std::string lines = "deb [arch=amd64 signed-by=/k.gpg] http://line.test/debian bookworm main # old\ndeb-src http://line.test/debian bookworm main\ndeb http://line.test/x bookworm-backports main\n";

  EXPECT_EQ(sources_for_suite({stanzas, lines}, "bookworm", "bookworm"),
            "deb [signed-by=/usr/share/keyrings/archive.gpg] http://mirror.test/debian bookworm main contrib\n"
            "deb [signed-by=/usr/share/keyrings/archive.gpg] http://mirror.test/debian bookworm-updates main contrib\n"
            "deb http://mirror.test/security bookworm-security main\n"
            "deb [signed-by=/k.gpg] http://line.test/debian bookworm main\n");
  EXPECT_EQ(sources_for_suite({lines}, "bookworm", "trixie"), "deb [signed-by=/k.gpg] http://line.test/debian trixie main\n");
  EXPECT_EQ(sources_for_suite({stanzas}, "bookworm", "sid"), "deb [signed-by=/usr/share/keyrings/archive.gpg] http://mirror.test/debian sid main contrib\n");
  EXPECT_EQ(sources_for_suite({"deb http://third.test/ stable main\n"}, "bookworm", "bookworm"), "");
}

TEST(DebianNamesTest, RefusesWhatCouldBeAnOptionOrAnotherWord) {
  EXPECT_TRUE(validate_debian_names("bookworm", {"git", "g++", "libc6-dev", "python3.11"}).ok());
  for (const char* suite : {"", "-x", "a b", "a/b", "../x", "Bookworm", "a;b"}) EXPECT_FALSE(validate_debian_names(suite, {}).ok()) << suite;
  for (const char* package : {"", "-o", "git,curl", "git=1", "g it", "./x", "?pattern", "$(x)"}) EXPECT_FALSE(validate_debian_names("bookworm", {package}).ok()) << package;
}

class DebianImportTest : public ImageTest {};

TEST_F(DebianImportTest, BuildsABookwormBaseWithPackages) {
  if (std::getenv("DSEC_E2E") == nullptr) GTEST_SKIP() << "builds a system from the package mirror for a minute: set DSEC_E2E=1";
  std::string stages;
  ImportOptions options{.kind = model::LayerKind::kBase, .source_label = "debian:bookworm,sudo"};
  options.on_progress = [&](const ImportProgress& progress) {
    if (!stages.ends_with(progress.stage + " ")) stages += progress.stage + " ";
  };

  const auto record = importer_->import_debian("bookworm", {"sudo"}, options);

  ASSERT_TRUE(record.ok()) << record.error().message();
  const int mount = store_->mount(record->digest).value();
  EXPECT_EQ(content(mount, "etc/debian_version").substr(0, 3), "12.");
  EXPECT_EQ(stat_of(mount, "usr/bin/sudo").st_mode, S_IFREG | 04755u);
  EXPECT_EQ(stat_of(mount, "etc/shadow").st_gid, 42u);
  EXPECT_EQ(stat_of(mount, "tmp").st_mode, S_IFDIR | 01777u);
  EXPECT_FALSE(exists(mount, "etc/apt/apt.conf.d/99mmdebstrap"));
  EXPECT_GT(record->entries, 5000u);
  EXPECT_GT(record->setuid_files, 3u);
  EXPECT_EQ(stages, "receive unpack build publish ");
  EXPECT_EQ(leftovers().size(), 3u);  // metadata, data, record
}

TEST_F(DebianImportTest, SaysWhyASuiteCannotBeBuilt) {
  if (std::getenv("DSEC_E2E") == nullptr) GTEST_SKIP() << "asks the package mirror: set DSEC_E2E=1";

  const auto record = importer_->import_debian("nosuchsuite", {}, {});

  ASSERT_FALSE(record.ok());
  EXPECT_NE(record.error().message().find("nosuchsuite"), std::string::npos) << record.error().message();
  EXPECT_TRUE(leftovers().empty());
}

}  // namespace
}  // namespace dsec::image
