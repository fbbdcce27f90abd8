#include "erofs/entry_copy.h"

#include "erofs/hand_made_image.h"
#include "erofs/layer_merge_fixture.h"

namespace dsec::erofs {
namespace {

using test::digest_text;
using test::Image;
using test::LayerMergeTest;
using test::pattern;

class EntryCopyTest : public LayerMergeTest {
 protected:
  // `from` of the source (a directory's content, or a file) as `to`, as a part over `below`.
  struct Outcome {
    Result<void> done;
    std::string digest;
    std::unique_ptr<Image> part;
  };
  Outcome copy(const Image& source, const Image& below, const std::string& from, const std::string& to, CopyRules rules = {}) {
    rules.max_bytes = 1 << 30;
    rules.max_entries = 1000;
    Reader of_source = reader(source);
    Reader of_below = reader(below);
    LayerStack stack({&of_below});
    auto part = std::make_unique<Image>(WriterOptions{.overlaps = Overlaps::kLayer, .profile = Profile::kLz4, .parents = data_of({&of_source})});
    EntryCopy run(of_source, stack, *part->writer, rules);
    const StoredInode node = of_source.lookup("/" + from).value();
    Result<void> done = node.is_directory() ? run.add_contents(from, to) : run.add_file(from, node, to);
    if (done.ok()) done = run.place_contents();
    if (done.ok()) part->finish(run.newest_seconds());
    return {std::move(done), run.digest(), std::move(part)};
  }
  static Image base() {
    Image out;
    out.directory("etc");
    out.file("etc/hosts", "base\n");
    out.directory("usr");
    out.directory("usr/bin");
    out.link("bin", "usr/bin");
    out.finish();
    return out;
  }
  static void big_context(Image& out, std::int64_t seconds) {
    out.directory("app", {.mode = 0750, .uid = 5, .gid = 6, .mtime_seconds = seconds, .attributes = {}});
    out.file("app/large", pattern(300'000, 1), {.mode = 0755, .uid = 5, .mtime_seconds = seconds, .attributes = {}});
    out.file("app/small", "few bytes", {.mode = 0600, .mtime_seconds = seconds, .attributes = {}});
    out.link("app/link", "small");
    out.finish();
  }
};

TEST_F(EntryCopyTest, ContentStaysInTheSourcesDataWhereMostOfItIsWanted) {
  const Image below = base();
  Image context;
  big_context(context, 77);

  const Outcome copied = copy(context, below, "app", "srv", {.uid = 0, .gid = 0});

  ASSERT_TRUE(copied.done.ok()) << copied.done.error().message();
  EXPECT_EQ(copied.part->written.data_bytes, 0U) << "nothing is copied";
  Image merged;
  Reader lower = reader(below);
  Reader part = reader(*copied.part, {&context});
  std::vector<Reader*> layers = {&lower, &part};
  merged.writer = std::make_unique<Writer>(merged.metadata.get(), merged.data.get(), WriterOptions{.overlaps = Overlaps::kReplace, .parents = data_of(layers)});
  ASSERT_TRUE(merge_layers(layers, {.at = "", .copied_below_bytes = 0}, *merged.writer).ok());
  merged.finish();
  Reader whole = reader(merged, {&context, &below});
  EXPECT_EQ(content_of(whole, "/srv/large"), pattern(300'000, 1));
  EXPECT_EQ(content_of(whole, "/srv/small"), "few bytes");
  EXPECT_EQ(whole.link_target(whole.lookup("/srv/link").value()).value(), "small");
  EXPECT_EQ(whole.lookup("/srv/large").value().uid, 0U);
  EXPECT_EQ(content_of(whole, "/etc/hosts"), "base\n");
}

TEST_F(EntryCopyTest, AFileOfALargeImageIsCopiedOutOfIt) {
  const Image below = base();
  Image context;
  context.file("large", pattern(4 << 20, 1));
  context.file("wanted", pattern(100'000, 2));
  context.finish();

  const Outcome copied = copy(context, below, "wanted", "etc/wanted");

  ASSERT_TRUE(copied.done.ok());
  Reader part = reader(*copied.part);
  ASSERT_EQ(part.devices().size(), 1U);
  EXPECT_EQ(digest_text(part.devices()[0]), copied.part->written.data_digest);
  EXPECT_EQ(content_of(part, "/etc/wanted"), pattern(100'000, 2));
}

TEST_F(EntryCopyTest, TheDigestIsOfPathsModesOwnersAndBytesAndNotOfTimes) {
  const Image below = base();
  Image context, later;
  big_context(context, 77);
  big_context(later, 99'999);

  const std::string first = copy(context, below, "app", "srv").digest;

  EXPECT_EQ(copy(later, below, "app", "srv").digest, first);
  EXPECT_NE(copy(context, below, "app", "srw").digest, first);
  EXPECT_NE(copy(context, below, "app", "srv", {.uid = 1}).digest, first);
  EXPECT_NE(copy(context, below, "app", "srv", {.mode = 0600}).digest, first);
  EXPECT_NE(copy(context, below, "app/small", "srv").digest, copy(context, below, "app/large", "srv").digest);
}

TEST_F(EntryCopyTest, ADirectoryThatIsALinkThereStaysOneAndOtherKindsAreRefused) {
  const Image below = base();
  Image context;
  context.directory("bin");
  context.file("bin/tool", "tool");
  context.directory("hosts");
  context.file("hosts/x", "x");
  context.file("etc", "a file");
  context.finish();
  Image only_bin;
  only_bin.directory("tree");
  only_bin.directory("tree/bin");
  only_bin.file("tree/bin/tool", "tool");
  only_bin.finish();

  const Outcome through = copy(only_bin, below, "tree", "");
  const Outcome directory_over_file = copy(context, below, "hosts", "etc/hosts");
  const Outcome file_over_directory = copy(context, below, "etc", "etc");

  ASSERT_TRUE(through.done.ok());
  Image merged;
  ASSERT_TRUE(merge({&below, through.part.get()}, merged).ok());
  Reader whole = reader(merged, {&below, through.part.get(), &only_bin});
  EXPECT_TRUE(whole.lookup("/bin").value().is_symlink());
  EXPECT_EQ(content_of(whole, "/usr/bin/tool"), "tool");
  EXPECT_TRUE(directory_over_file.done.ok()) << "its own content stands below a file: the merge decides";
  EXPECT_FALSE(file_over_directory.done.ok());
}

}  // namespace
}  // namespace dsec::erofs
