#include <cstdlib>

#include "image/oci_fixture.h"

namespace dsec::image {
namespace {

using OciImportTest = OciTest;

Image layered() {
  TarFixture base;
  base.directory("etc").file("etc/keep", "1").file("etc/gone", "2").directory("var").directory("var/cache").file("var/cache/old", "3");
  base.directory("usr").directory("usr/lib").symlink("lib", "usr/lib").directory("data").file("data/a", "a").file("turns", "file");
  TarFixture middle;
  middle.directory("etc").file("etc/.wh.gone", "").directory("var/cache").file("var/cache/new", "4").file("var/cache/.wh..wh..opq", "");
  middle.file("lib/through-link", "5").file(".wh.nothing-there", "");
  TarFixture top;
  top.file(".wh.data", "").directory("turns").file("turns/inside", "6").file("etc/keep", "changed").file("again", "7");
  TarFixture back;
  back.directory("data").file("data/b", "b").hard_link("more", "again");
  return {{base.finished(), middle.finished(), top.finished(), back.finished()}, {"gzip", "zstd -q", "cat", "gzip"}};
}

TEST_F(OciImportTest, LaysLayersOverOneAnotherWithTheirWhiteouts) {
  const auto record = import(layout(layered()), {.source_label = "oci:test"});

  ASSERT_TRUE(record.ok()) << record.error().message();
  const int mount = store_->mount(record->digest).value();
  EXPECT_EQ(content(mount, "etc/keep"), "changed");
  EXPECT_FALSE(exists(mount, "etc/gone"));
  EXPECT_FALSE(exists(mount, "etc/.wh.gone"));
  EXPECT_FALSE(exists(mount, "var/cache/old"));
  EXPECT_EQ(content(mount, "var/cache/new"), "4");  // the marker came after it in the same layer
  EXPECT_EQ(content(mount, "usr/lib/through-link"), "5");
  EXPECT_EQ(content(mount, "turns/inside"), "6");
  EXPECT_FALSE(exists(mount, "data/a"));
  EXPECT_EQ(content(mount, "data/b"), "b");
  EXPECT_EQ(content(mount, "more"), "7");
  EXPECT_TRUE(exists(mount, "proc"));
}

TEST_F(OciImportTest, HidesWhatLayersHideInWhateverOrderTheySayIt) {
  TarFixture base;
  base.directory("data").file("data/a", "a").directory("kept").file("kept/a", "a").symlink("link", "kept").directory("gone").file("gone/a", "a").directory("file").file("file/a", "a");
  TarFixture top;
  top.file(".wh.data", "").file("data/b", "b");                // a new directory that nothing describes
  top.file("kept/b", "b").file(".wh.kept", "");                // what it brought itself stays
  top.file(".wh.gone", "").file("gone/.wh.a", "");             // hides in what is hidden: makes nothing
  top.file("link/c", "c").file("link/.wh.nothing", "");        // through a link of the lower layer
  top.file("file", "now a file").file("file/.wh.a", "");       // hides below what is no directory
  top.file("nowhere/.wh.x", "").file("other/.wh..wh..opq", "");
  Image image = {{base.finished(), top.finished()}, {"cat", "gzip"}};

  const auto record = import(layout(image));

  ASSERT_TRUE(record.ok()) << record.error().message();
  const int mount = store_->mount(record->digest).value();
  EXPECT_FALSE(exists(mount, "data/a"));
  EXPECT_EQ(content(mount, "data/b"), "b");
  EXPECT_FALSE(exists(mount, "kept/a"));
  EXPECT_EQ(content(mount, "kept/b"), "b");
  EXPECT_EQ(content(mount, "kept/c"), "c");
  EXPECT_EQ(content(mount, "file"), "now a file");
  for (const char* name : {"gone", "nowhere", "other"}) EXPECT_FALSE(exists(mount, name)) << name;
}

TEST_F(OciImportTest, CarriesTheImagesConfiguration) {
  const auto record = import(layout(layered()));

  ASSERT_TRUE(record.ok()) << record.error().message();
  EXPECT_EQ(record->architecture, "amd64");
  EXPECT_EQ(record->config.entrypoint, std::vector<std::string>{"/entry"});
  EXPECT_EQ(record->config.command, (std::vector<std::string>{"serve", "--now"}));
  EXPECT_EQ(record->config.env, (std::map<std::string, std::string>{{"PATH", "/usr/bin"}, {"EMPTY", ""}}));
  EXPECT_EQ(record->config.cwd, "/srv");
  EXPECT_EQ(record->config.user, "1000:1000");
  open();
  EXPECT_EQ(store_->find(record->digest).value(), *record);
}

TEST_F(OciImportTest, NamesImagesOfOneContentAndTwoConfigurationsApart) {
  Image image = layered();
  const auto first = import(layout(image));
  image.settings = R"({"User":"0"})";
  const auto second = import(layout(image));
  const auto again = import(layout(image));

  ASSERT_TRUE(first.ok() && second.ok() && again.ok());
  EXPECT_NE(first->digest, second->digest);
  EXPECT_EQ(second->digest, again->digest);
  EXPECT_EQ(second->config.user, "0");
}

TEST_F(OciImportTest, ReadsADockerArchive) {
  const Image image = layered();
  TarFixture tar;
  std::string layers;
  for (std::size_t i = 0; i < image.layers.size(); i++) {
    const std::string directory = "layer" + std::to_string(i);
    tar.directory(directory).file(directory + "/layer.tar", image.layers[i]);
    layers += (i == 0 ? "\"" : ",\"") + directory + "/layer.tar\"";
  }
  const std::string config = config_of(image);
  tar.file(sha256(config) + ".json", config).file("manifest.json", R"([{"Config":")" + sha256(config) + R"(.json","RepoTags":["x:1"],"Layers":[)" + layers + "]}]");

  const auto record = import(pack("gzip", tar.finished()));

  ASSERT_TRUE(record.ok()) << record.error().message();
  const int mount = store_->mount(record->digest).value();
  EXPECT_EQ(content(mount, "etc/keep"), "changed");
  EXPECT_EQ(record->config.cwd, "/srv");
}

TEST_F(OciImportTest, TakesTheImageOfThisArchitecture) {
  extra_manifests_ = R"(,{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:)" + std::string(64, '1') +
                     R"(","platform":{"os":"linux","architecture":"s390x"}},{"digest":"sha256:)" + std::string(64, '2') + R"(","platform":{"os":"unknown","architecture":"unknown"}})";

  const auto record = import(layout(layered(), R"({"os":"linux","architecture":"amd64"})"));

  ASSERT_TRUE(record.ok()) << record.error().message();
}

TEST_F(OciImportTest, ReadsWhatSkopeoWrites) {
  if (std::system("command -v skopeo > /dev/null") != 0) GTEST_SKIP() << "skopeo is not installed";
  ASSERT_TRUE(sys::replace_file(directory_ + "/from.tar", layout(layered()), 0600).ok());
  for (const std::string format : {"oci-archive:", "docker-archive:"}) {
    const std::string to = directory_ + "/to-" + format.substr(0, 3) + ".tar";
    ASSERT_EQ(std::system(("skopeo copy --quiet --insecure-policy oci-archive:" + directory_ + "/from.tar " + format + to).c_str()), 0);
    const sys::Fd fd = sys::open_at(AT_FDCWD, to, O_RDONLY).value();

    const auto imported = importer_->import_oci(fd.get(), {});

    ASSERT_TRUE(imported.ok()) << format << imported.error().message();
    EXPECT_EQ(content(store_->mount(imported->record.digest).value(), "etc/keep"), "changed");
    EXPECT_EQ(imported->record.config.cwd, "/srv");
  }
}

TEST_F(OciImportTest, RefusesArchivesThatAreWrongAndLeavesNothing) {
  const std::string good = layout(layered());
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string bytes = good;
    const std::size_t at = bytes.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return bytes.replace(at, to.size(), to);
  };
  Image escape = layered();
  escape.layers.push_back(TarFixture().file("../../escape", "x").finished());
  escape.compressions.push_back("gzip");
  Image through = layered();
  through.layers.push_back(TarFixture().directory("work").directory("work/archive").symlink("out", "/work/archive").file("out/.wh..wh..opq", "").file("out/f", "x").finished());
  through.compressions.push_back("cat");
  Image foreign = layered();
  foreign.architecture = "s390x";
  Image broken = layered();
  broken.layers[2] = "no tar at all, but long enough to look at" + std::string(2000, 'x');
  TarFixture several;
  several.file("manifest.json", R"([{"Config":"a.json","Layers":[]},{"Config":"b.json","Layers":[]}])");
  TarFixture outside;
  outside.file("manifest.json", R"([{"Config":"../../../etc/os-release","Layers":[]}])");
  TarFixture bad_path;
  bad_path.file("index.json", R"({"manifests":[{"digest":"sha256:../../../../etc/passwd"}]})");
  std::string nested(100, '[');
  struct Case {
    const char* what;
    std::string archive;
    ErrorCode code;
  };
  const std::vector<Case> cases = {
      {"a layer blob that was changed", changed("changed", "chanted"), ErrorCode::kDataFault},
      {"a configuration that was changed", changed("/entry", "/evils"), ErrorCode::kDataFault},
      {"a manifest that was changed", changed("application/vnd.oci.image.config", "Application"), ErrorCode::kDataFault},
      {"a layer that leads upwards", layout(escape), ErrorCode::kInvalidArgument},
      {"another architecture", layout(foreign), ErrorCode::kUnsupported},
      {"a layer that is no tar", layout(broken), ErrorCode::kInvalidArgument},
      {"several docker images", several.finished(), ErrorCode::kInvalidArgument},
      {"a configuration outside", outside.finished(), ErrorCode::kInvalidArgument},
      {"a digest that is a path", bad_path.finished(), ErrorCode::kUnsupported},
      {"no manifest at all", TarFixture().file("x", "x").finished(), ErrorCode::kInvalidArgument},
      {"a manifest that is no JSON", TarFixture().file("index.json", "{").finished(), ErrorCode::kInvalidArgument},
      {"a manifest nested too deep", TarFixture().file("index.json", nested).finished(), ErrorCode::kInvalidArgument},
      {"an archive cut short", good.substr(0, good.size() / 2), ErrorCode::kInvalidArgument},
  };

  for (const Case& wrong : cases) {
    const auto record = import(wrong.archive);

    EXPECT_FALSE(record.ok()) << wrong.what;
    if (!record.ok()) EXPECT_EQ(record.error().code(), wrong.code) << wrong.what << ": " << record.error().message();
    EXPECT_TRUE(leftovers().empty()) << wrong.what;
  }
  // A link that a layer leads through stays inside the tree.
  const auto inside = import(layout(through));
  ASSERT_TRUE(inside.ok()) << inside.error().message();
  const int mount = store_->mount(inside->digest).value();
  EXPECT_EQ(content(mount, "work/archive/f"), "x");
}

}  // namespace
}  // namespace dsec::image
