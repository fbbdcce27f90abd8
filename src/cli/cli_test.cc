#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cli/completion.h"
#include "cli/endpoint.h"
#include "cli/exec_stream.h"
#include "cli/host_checks.h"
#include "cli/import_source.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/tar_reader.h"
#include "cli/tar_writer.h"
#include "cli/units_text.h"
#include "cli/verbs.h"
#include "sys/file.h"

namespace dsec::cli {
namespace {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = "/tmp/dsec-cli-test-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() {
    auto parent = sys::open_at(AT_FDCWD, "/tmp", O_RDONLY | O_DIRECTORY);
    if (parent.ok()) (void)sys::remove_tree_at(parent->get(), path_.substr(5)).ok();
  }
  std::string path(const std::string& name = "") const { return name.empty() ? path_ : path_ + "/" + name; }

 private:
  std::string path_;
};

void write_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::string read_text(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

std::string whole_tar(const std::string& root, TarWriter::Options options = {}) {
  auto writer = TarWriter::open(root, std::move(options));
  EXPECT_TRUE(writer.ok());
  std::string all;
  while (true) {
    auto part = writer->next();
    EXPECT_TRUE(part.ok());
    if (!part.ok() || part->empty()) return all;
    all += *part;
  }
}

Result<void> unpack(const std::string& bytes, const std::string& directory, std::size_t portion) {
  DSEC_ASSIGN(TarReader reader, TarReader::open(directory));
  for (std::size_t at = 0; at < bytes.size(); at += portion) DSEC_TRY(reader.take(std::string_view(bytes).substr(at, portion)));
  return reader.finish();
}

TEST(ImportSourceTest, CallsAPulledImageAsTheRegistryDoes) {
  EXPECT_EQ(name_of_reference("registry.example/debian"), "debian:latest");
  EXPECT_EQ(name_of_reference("127.0.0.1:5000/team/app:v1"), "team/app:v1");
  EXPECT_EQ(name_of_reference("localhost/app@sha256:00"), "app:latest");
}

TEST(UnitsTextTest, ReadsDurationsAsPeopleWriteThem) {
  EXPECT_EQ(parse_seconds("90").value(), 90);
  EXPECT_EQ(parse_seconds("2h30m").value(), 9000);
  EXPECT_EQ(parse_seconds("1d").value(), 86400);
  for (const char* bad : {"", "x", "5y", "-3s", "1.5h"}) EXPECT_FALSE(parse_seconds(bad).ok()) << bad;
}

TEST(UnitsTextTest, ReadsSizesAsMebibytes) {
  EXPECT_EQ(parse_mebibytes("512").value(), 512);
  EXPECT_EQ(parse_mebibytes("1.5g").value(), 1536);
  EXPECT_EQ(parse_mebibytes("2GiB").value(), 2048);
  for (const char* bad : {"", "g", "0", "-1g", "4k", "5 apples"}) EXPECT_FALSE(parse_mebibytes(bad).ok()) << bad;
}

TEST(UnitsTextTest, WritesBytesAndAges) {
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(age_text(5000), "5s");
  EXPECT_EQ(age_text(3 * 3600 * 1000), "3h");
  EXPECT_EQ(time_text(1'800'000'000'000), "2027-01-15 08:00:00Z");
}

TEST(TableTest, AlignsByDisplayWidthAndHidesControlCharacters) {
  EXPECT_EQ(align({{"A", "B"}, {"ää", "x"}, {"a\x1b[31m", "y"}}), "A       B\nää      x\na?[31m  y\n");
}

TEST(TableTest, FormatsFieldsByPath) {
  const json::object item = {{"id", "x1"}, {"labels", {{"job.name", "j"}, {"n", 3}}}};

  EXPECT_EQ(apply_format("{id}\\t{labels.job.name}/{labels.n}{nothing}", item).value(), "x1\tj/3");
  EXPECT_FALSE(apply_format("{id", item).ok());
}

TEST(TarWriterTest, WhatItWritesTheReaderReads) {
  TemporaryDirectory from, to;
  ::mkdir(from.path("sub").c_str(), 0755);
  const std::string long_name(120, 'n');
  write_text(from.path("sub/" + long_name), "long");
  write_text(from.path("empty"), "");
  write_text(from.path("big"), std::string(700'001, 'b'));
  ::chmod(from.path("big").c_str(), 0751);
  ASSERT_EQ(::symlink("sub/nowhere", from.path("link").c_str()), 0);
  ASSERT_EQ(::link(from.path("big").c_str(), from.path("twin").c_str()), 0);

  const std::string bytes = whole_tar(from.path());
  ASSERT_TRUE(unpack(bytes, to.path(), 777).ok());

  EXPECT_EQ(bytes.size() % 512, 0U);
  EXPECT_EQ(read_text(to.path("big")), std::string(700'001, 'b'));
  EXPECT_EQ(read_text(to.path("sub/" + long_name)), "long");
  EXPECT_EQ(read_text(to.path("empty")), "");
  struct stat big {}, twin {};
  ASSERT_EQ(::stat(to.path("big").c_str(), &big), 0);
  ASSERT_EQ(::stat(to.path("twin").c_str(), &twin), 0);
  EXPECT_EQ(big.st_mode & 0777, 0751U);
  EXPECT_EQ(big.st_ino, twin.st_ino);
  char target[64] = {};
  EXPECT_EQ(::readlink(to.path("link").c_str(), target, sizeof target), 11);
}

TEST(TarWriterTest, TheSameTreeGivesTheSameBytesWithTheOwnerAsked) {
  TemporaryDirectory from;
  for (const char* name : {"b", "a", "c"}) write_text(from.path(name), name);

  const std::string bytes = whole_tar(from.path(), {.owner = Owner{5, 7}, .prefix = "p/"});

  EXPECT_EQ(bytes, whole_tar(from.path(), {.owner = Owner{5, 7}, .prefix = "p/"}));
  EXPECT_EQ(bytes.substr(0, 4), std::string("p/a\0", 4));
  EXPECT_EQ(bytes.substr(108, 7), "0000005");
  EXPECT_EQ(bytes.substr(116, 7), "0000007");
}

TEST(TarReaderTest, NothingLandsOutside) {
  TemporaryDirectory to;
  const auto archive = [](const TarEntry& entry, const std::string& content = "") {
    return tar_header(entry) + content + std::string(tar_padding(content.size()), '\0');
  };

  const std::string up = archive({.name = "../out", .size = 1}, "x") + tar_end();
  const std::string through = archive({.name = "d", .type = '2', .link = "/tmp"}) + archive({.name = "d/dsec-out", .size = 1}, "x") + tar_end();
  const std::string hard = archive({.name = "h", .type = '1', .link = "../../etc/passwd"}) + tar_end();

  EXPECT_FALSE(unpack(up, to.path(), 512).ok());
  EXPECT_FALSE(unpack(through, to.path(), 100).ok());
  EXPECT_FALSE(unpack(hard, to.path(), 512).ok());
  EXPECT_NE(::access("/tmp/dsec-out", F_OK), 0);
}

TEST(TarReaderTest, WhatIsNoArchiveOrStopsInTheMiddleIsSaid) {
  TemporaryDirectory to;
  const std::string good = tar_header({.name = "f", .size = 600}) + std::string(600, 'x');

  EXPECT_FALSE(unpack(std::string(512, 'x'), to.path(), 512).ok());
  EXPECT_FALSE(unpack(good.substr(0, 700), to.path(), 512).ok());
}

TEST(ExitCodeTest, FollowsTheContract) {
  EXPECT_EQ(exit_code_of({{"exit_code", 3}}), 3);
  EXPECT_EQ(exit_code_of({{"exit_code", nullptr}, {"signal", "SIGKILL"}}), 137);
  EXPECT_EQ(exit_code_of({{"signal", 15}}), 143);
  EXPECT_EQ(exit_code_of({{"exit_code", nullptr}, {"signal", "SIGKILL"}, {"timed_out", true}}), 124);
  EXPECT_EQ(exit_code_of({{"status", "failed"}}), 125);
}

TEST(EndpointTest, AContextsKeyGoesToItsOwnServerOnly) {
  TemporaryDirectory home;
  ::setenv("XDG_CONFIG_HOME", home.path().c_str(), 1);
  ::unsetenv("DSEC_URL");
  ::unsetenv("DSEC_API_KEY");
  ::unsetenv("DSEC_CONTEXT");
  ClientConfig config;
  config.current = "prod";
  config.contexts["prod"] = {"https://prod", "secret", ""};
  ASSERT_TRUE(save_config(config).ok());

  const auto current = find_endpoint("", "");
  const auto other = find_endpoint("http://elsewhere:1", "");

  EXPECT_EQ(current->url, "https://prod");
  EXPECT_EQ(current->api_key, "secret");
  EXPECT_EQ(other->api_key, "");
  EXPECT_FALSE(find_endpoint("", "nowhere").ok());
  struct stat file {};
  ASSERT_EQ(::stat(config_path().c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600U);
  ::unsetenv("XDG_CONFIG_HOME");
}

TEST(SandboxSpecTest, SaysOnlyWhatWasAsked) {
  SpecOptions options;
  options.image = "debian:12";
  options.memory = "1g";
  options.services = {"pypi"};
  options.labels = {"a=b=c"};

  const json::object spec = sandbox_spec(options).value();

  EXPECT_EQ(json::serialize(spec),
            R"({"image":"debian:12","resources":{"memory_mb":1024},"network":{"mode":"proxy","services":["pypi"]},"labels":{"a":"b=c"}})");
  options.base = "x";
  EXPECT_FALSE(sandbox_spec(options).ok());
}

TEST(ImportSourceTest, KnowsTheForms) {
  EXPECT_EQ(parse_source("debian:bookworm,git")->kind, SourceKind::kServerSide);
  EXPECT_EQ(parse_source("docker://debian:12")->kind, SourceKind::kServerSide);
  EXPECT_EQ(parse_source("oci:/x")->kind, SourceKind::kOci);
  EXPECT_EQ(parse_source("docker-archive:/x")->path, "/x");
  EXPECT_EQ(parse_source("./tree")->kind, SourceKind::kTree);
  EXPECT_FALSE(parse_source("debian:").ok());
  EXPECT_FALSE(SourceStream::open({SourceKind::kTree, "/no/such"}, {}).ok());
}

TEST(CompletionTest, OffersVerbsFlagsAndNames) {
  const VerbNode tree = verb_tree();

  const std::string bash = completion_script("bash", tree).value();

  EXPECT_NE(bash.find("port-forward"), std::string::npos);
  EXPECT_NE(bash.find("\"layer import\")"), std::string::npos);
  EXPECT_NE(bash.find("list=\"dsec ps -q\""), std::string::npos);
  EXPECT_TRUE(completion_script("zsh", tree).ok());
  EXPECT_NE(completion_script("fish", tree)->find("complete -c dsec"), std::string::npos);
  EXPECT_FALSE(completion_script("tcsh", tree).ok());
}

TEST(ProgressTest, DrawsABar) {
  EXPECT_EQ(bar_text(50, 100, 12), "[=====>    ]  50%");
  EXPECT_EQ(bar_text(1, 0, 12), "");
  EXPECT_EQ(bar_text(200, 100, 12), "[==========] 100%");
}

TEST(HostChecksTest, ReadsKernelVersions) {
  EXPECT_EQ(kernel_version_number("6.18.44-fc"), 6018);
  EXPECT_EQ(kernel_version_number("x"), 0);
}

}  // namespace
}  // namespace dsec::cli
