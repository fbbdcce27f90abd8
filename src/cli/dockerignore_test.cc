#include "cli/dockerignore.h"

#include <gtest/gtest.h>

namespace dsec::cli {
namespace {

TEST(DockerIgnoreTest, TheLastPatternThatMatchesDecides) {
  const DockerIgnore ignore("# comment\n*.log\n!keep.log\nbuild/\n");

  EXPECT_TRUE(ignore.ignores("a.log"));
  EXPECT_FALSE(ignore.ignores("keep.log"));
  EXPECT_FALSE(ignore.ignores("sub/a.log"));
  EXPECT_TRUE(ignore.ignores("build"));
  EXPECT_TRUE(ignore.ignores("build/x/y"));
  EXPECT_FALSE(ignore.ignores("# comment"));
}

TEST(DockerIgnoreTest, TwoStarsCrossDirectoriesAndOneDoesNot) {
  const DockerIgnore ignore("**/node_modules\n/docs/*.md\n**/*.pyc\n");

  EXPECT_TRUE(ignore.ignores("node_modules"));
  EXPECT_TRUE(ignore.ignores("a/b/node_modules/c"));
  EXPECT_TRUE(ignore.ignores("docs/x.md"));
  EXPECT_FALSE(ignore.ignores("docs/sub/x.md"));
  EXPECT_TRUE(ignore.ignores("x.pyc"));
  EXPECT_TRUE(ignore.ignores("a/b/x.pyc"));
}

TEST(DockerIgnoreTest, EverythingButWhatIsTakenBack) {
  const DockerIgnore ignore("*\n!src\n!file-[0-9].txt\n");

  EXPECT_TRUE(ignore.ignores("other"));
  EXPECT_FALSE(ignore.ignores("src"));
  EXPECT_FALSE(ignore.ignores("src/deep/file"));
  EXPECT_FALSE(ignore.ignores("file-3.txt"));
  EXPECT_TRUE(ignore.ignores("file-x.txt"));
  EXPECT_TRUE(ignore.has_exceptions());
}

}  // namespace
}  // namespace dsec::cli
