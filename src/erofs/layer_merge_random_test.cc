// Random layers, merged and written one over the other.
#include <algorithm>
#include <functional>
#include <random>

#include "erofs/hand_made_image.h"
#include "erofs/layer_merge_fixture.h"
#include "erofs/stack_lookup.h"

namespace dsec::erofs {
namespace {

using test::Image;
using test::LayerMergeTest;
using test::pattern;

// Every path of the scene and every kind of miss.
std::vector<std::string> all_paths() {
  std::vector<std::string> out = {""};
  for (std::size_t i = 0; i < out.size() && std::count(out[i].begin(), out[i].end(), '/') < 2; i++) {
    const std::string above = out[i];
    for (const char name : {'a', 'b', 'c', 'd'}) out.push_back(above.empty() ? std::string(1, name) : above + "/" + name);
  }
  return out;
}

// Random layers, whiteouts before entries as tars have them, once merged and once
// written one over the other into one tree.
class Scene {
 public:
  Scene(unsigned seed, Profile profile, Image& direct) : random_(seed), profile_(profile), direct_(direct) {}

  std::unique_ptr<Image> layer() {
    auto image = std::make_unique<Image>(WriterOptions{.overlaps = Overlaps::kLayer, .profile = profile_});
    image_ = image.get();
    brought_.clear();
    hidden_.clear();
    for (unsigned i = below(6); i > 0; i--) hide();
    for (unsigned i = 1 + below(25); i > 0; i--) add();
    image->finish();
    return image;
  }

 private:
  unsigned below(unsigned limit) { return std::uniform_int_distribution<unsigned>(0, limit - 1)(random_); }
  std::string path() {
    std::string out;
    for (unsigned depth = 1 + below(3); depth > 0; depth--) out += (out.empty() ? "" : "/") + std::string(1, static_cast<char>('a' + below(4)));
    return out;
  }
  // Below what this layer brought nothing is added that needs it to be a directory.
  bool blocked(const std::string& path) const {
    for (std::size_t end = path.find('/'); end != std::string::npos; end = path.find('/', end + 1)) {
      const auto found = brought_.find(path.substr(0, end));
      if (found != brought_.end() && !found->second) return true;
    }
    return false;
  }
  // Before it brings anything else, a layer hides what lies below it.
  void hide() {
    const std::string at = path();
    const auto above = [&](const std::string& other) { return at.starts_with(other + "/"); };
    if (std::any_of(hidden_.begin(), hidden_.end(), above)) return;
    if (std::any_of(brought_.begin(), brought_.end(), [&](const auto& one) { return one.first == at || one.first.starts_with(at + "/"); })) return;
    if (below(3) != 0) {
      both([&](Writer& writer) { return &writer == direct_.writer.get() ? writer.remove(at) : writer.make_whiteout(at); });
      hidden_.push_back(at);
      return;
    }
    state_parents(at, {});
    both([&](Writer& writer) { return writer.make_directory(at, {}); });
    ASSERT_TRUE(image_->writer->make_opaque(at).ok());
    const std::vector<std::string> lower = direct_.writer->names(at).value();
    for (const std::string& name : lower) ASSERT_TRUE(direct_.writer->remove(at + "/" + name).ok());
    brought_[at] = true;
  }
  void state_parents(const std::string& at, const EntryMeta& how) {
    for (std::size_t end = at.find('/'); end != std::string::npos; end = at.find('/', end + 1)) {
      const std::string parent = at.substr(0, end);
      if (brought_.emplace(parent, true).second) both([&](Writer& writer) { return writer.make_directory(parent, how); });
    }
  }
  EntryMeta meta() {
    EntryMeta out{.mode = static_cast<mode_t>(0700 + below(64)), .uid = below(3), .gid = below(3), .mtime_seconds = 1'000 + below(5)};
    if (below(4) == 0) out.attributes = {{"user.a", std::string(below(300), 'v')}, {"user.b", ""}};
    return out;
  }
  void both(const std::function<Result<void>(Writer&)>& act) {
    const Result<void> a = act(*image_->writer);
    const Result<void> b = act(*direct_.writer);
    EXPECT_EQ(a.ok(), b.ok());
  }
  void add() {
    const std::string at = path();
    if (blocked(at)) return;
    const EntryMeta how = meta();
    state_parents(at, how);
    const auto there = brought_.find(at);
    switch (below(4)) {
      case 0: {
        both([&](Writer& writer) { return writer.make_directory(at, how); });
        brought_[at] = true;
        return;
      }
      case 1:
        if (there != brought_.end()) return;
        both([&, target = "no/where" + std::string(below(60), 'x')](Writer& writer) { return writer.make_symlink(at, target, how); });
        break;
      case 2:
        if (there != brought_.end() || last_file_.empty() || !brought_.contains(last_file_) || brought_[last_file_]) return;
        both([&](Writer& writer) { return writer.make_hard_link(at, last_file_); });
        break;
      default: {
        if (there != brought_.end()) return;
        const std::string bytes = below(2) == 0 ? std::string(below(200'000), 'z') : pattern(below(70'000), below(9));
        for (Image* image : {image_, &direct_}) image->file(at, bytes, how);
        last_file_ = at;
      }
    }
    brought_[at] = false;
  }

  std::mt19937 random_;
  const Profile profile_;
  Image& direct_;
  Image* image_ = nullptr;
  std::map<std::string, bool> brought_;  // by this layer; whether a directory
  std::vector<std::string> hidden_;
  std::string last_file_;
};

class LayerStackTest : public LayerMergeTest {
 protected:
  // What a look through the layers finds is what their merge has.
  void expect_found_without_merging(const std::vector<const Image*>& layers, Reader& merged, unsigned seed) {
    std::vector<Reader> readers;
    std::vector<Reader*> pointers;
    for (const Image* layer : layers) readers.push_back(reader(*layer));
    for (Reader& one : readers) pointers.push_back(&one);
    LayerStack stack(pointers);
    for (const std::string& path : all_paths()) {
      const Result<StoredInode> expected = merged.lookup("/" + path);
      const auto found = stack.find(path, LayerStack::LastLink::kKeep);
      ASSERT_TRUE(found.ok()) << path << ", seed " << seed;
      // That only whiteouts imply is told as there.
      if (found->has_value() && (*found)->node.uid == kUnstatedOwner && (!expected.ok() || !expected->is_directory())) continue;
      ASSERT_EQ(found->has_value(), expected.ok()) << path << ", seed " << seed;
      if (!expected.ok()) continue;
      ASSERT_EQ((*found)->node.mode & 0170000, expected->mode & 0170000) << path << ", seed " << seed;
      if (!expected->is_directory()) ASSERT_EQ((*found)->node.size, expected->size) << path << ", seed " << seed;
    }
  }
};

TEST_F(LayerStackTest, SaysWhatUnpackingTheLayersInOrderSays) {
  for (unsigned seed = 0; seed < 150; seed++) {
    const Profile profile = seed % 2 == 0 ? Profile::kPlain : Profile::kLz4;
    Image direct({.overlaps = Overlaps::kReplace, .profile = profile});
    Scene scene(seed, profile, direct);
    std::vector<std::unique_ptr<Image>> images;
    std::vector<const Image*> layers;
    for (unsigned i = 0; i < 2 + seed % 4; i++) {
      images.push_back(scene.layer());
      layers.push_back(images.back().get());
    }

    Image merged;
    const Result<MergeCounts> counts = merge(layers, merged, {.at = "", .copied_below_bytes = seed % 3 == 0 ? 100'000u : 0u});
    ASSERT_TRUE(counts.ok()) << "seed " << seed << ": " << counts.error().message();
    direct.finish(counts->newest_seconds);
    Image again;
    ASSERT_TRUE(merge(layers, again, {.at = "", .copied_below_bytes = seed % 3 == 0 ? 100'000u : 0u}).ok());

    Reader of_merged = reader(merged, layers);
    Reader of_direct = reader(direct);
    const std::map<std::string, std::string> expected = contents(of_direct);
    const std::map<std::string, std::string> found = contents(of_merged);
    for (const auto& [path, text] : expected) ASSERT_EQ(found.contains(path) ? found.at(path) : "", text) << path << ", seed " << seed;
    ASSERT_EQ(found.size(), expected.size()) << "seed " << seed;
    ASSERT_EQ(merged.digest(), again.digest()) << "seed " << seed;
    expect_found_without_merging(layers, of_merged, seed);
  }
}

}  // namespace
}  // namespace dsec::erofs
