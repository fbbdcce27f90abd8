#include "erofs/layer_merge.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "erofs/attributes.h"
#include "erofs/stored_content.h"
#include "erofs/stored_entry.h"
#include "erofs/tree_walk.h"

namespace dsec::erofs {

namespace {

constexpr std::size_t kCopyBytes = 1 << 20;

std::string digest_of(const DeviceSlot& slot) { return std::string(slot.tag, sizeof slot.tag); }

bool is_unstated(const StoredInode& node) { return node.uid == kUnstatedOwner; }

// A file of the image and where its content comes from.
struct FileRef {
  std::uint32_t node = 0;
  std::uint32_t layer = 0;
  std::uint64_t nid = 0;
};

class Merge {
 public:
  Merge(const std::vector<Reader*>& layers, const MergeOptions& options, Writer& writer)
      : layers_(layers), options_(options), tree_(writer.tree()), contents_(writer.contents()) {
    for (std::uint32_t i = 0; i < contents_.parents().size(); i++) device_of_[contents_.parents()[i].digest] = i + 1;
  }

  Result<MergeCounts> run() {
    for (std::uint32_t i = 0; i < layers_.size(); i++) DSEC_TRY(lay_over(i).within("layer " + std::to_string(i)));
    keep_reachable();
    DSEC_TRY(refer_to_contents());
    DSEC_TRY(copy_the_rest());
    return counts_;
  }

 private:
  std::string path_of(std::string_view inside) const {
    if (inside.empty() || options_.at.empty()) return inside.empty() ? options_.at : std::string(inside);
    return options_.at + "/" + std::string(inside);
  }

  Result<void> lay_over(std::uint32_t layer) {
    Reader& reader = *layers_[layer];
    made_.clear();
    DSEC_TRY(resolve_links_below(reader));
    DSEC_ASSIGN(const StoredInode root, reader.root());
    DSEC_TRY(lay_directory(reader, path_of(""), root));
    DSEC_ASSIGN(TreeWalk walk, TreeWalk::begin(reader, "/", Depth::kAll));
    for (;;) {
      DSEC_ASSIGN(const std::optional<TreeWalk::Entry> entry, walk.next());
      if (!entry) return {};
      DSEC_TRY(lay_entry(layer, path_of(std::string_view(entry->path).substr(1)), entry->node));
    }
  }

  // To the files as the lower layers have them, before this one changes any name.
  Result<void> resolve_links_below(Reader& reader) {
    DSEC_ASSIGN(TreeWalk walk, TreeWalk::begin(reader, "/", Depth::kAll));
    for (;;) {
      DSEC_ASSIGN(const std::optional<TreeWalk::Entry> entry, walk.next());
      if (!entry) return {};
      if (!entry->node.is_symlink() || !is_unstated(entry->node)) continue;
      DSEC_ASSIGN(const std::string target, reader.link_target(entry->node));
      DSEC_ASSIGN(const std::uint32_t node, tree_.find(path_of(target)).within(entry->path));
      if (node == kNone) return invalid_argument(entry->path + ": a hard link to an entry that is not there");
      if (S_ISDIR(tree_.node(node).mode)) return invalid_argument(entry->path + ": a hard link to a directory");
      made_[entry->node.nid] = node;
    }
  }

  Result<void> lay_entry(std::uint32_t layer, const std::string& path, const StoredInode& node) {
    Reader& reader = *layers_[layer];
    if (node.is_directory()) return lay_directory(reader, path, node);
    if (node.is_device()) return tree_.remove(path);
    if (const auto known = made_.find(node.nid); known != made_.end()) return tree_.link(path, known->second);
    DSEC_ASSIGN(EntryMeta meta, stored_meta(reader, node).within(path));
    note_time(meta);
    DSEC_ASSIGN(const std::uint32_t made, tree_.make(path, static_cast<std::uint16_t>(node.mode), meta));
    if (node.links > 1) made_[node.nid] = made;
    if (node.is_symlink()) {
      DSEC_ASSIGN(const std::string target, reader.link_target(node));
      if (target.size() > Tree::kLongestLink) return invalid_argument(path + ": a symbolic link's target is too long");
      tree_.set_link_text(made, target);
    } else if (node.is_file() && node.size != 0) {
      tree_.node(made).size = node.size;
      files_.push_back({made, layer, node.nid});
    }
    return {};
  }

  Result<void> lay_directory(Reader& reader, const std::string& path, const StoredInode& node) {
    if (!is_unstated(node)) {
      DSEC_ASSIGN(const EntryMeta meta, stored_meta(reader, node).within(path));
      note_time(meta);
      if (!path.empty()) DSEC_TRY(tree_.make_directory(path, meta));
    }
    DSEC_ASSIGN(const bool opaque, is_opaque(reader, node));
    if (!opaque) return {};
    DSEC_ASSIGN(const std::vector<std::string> hidden, tree_.names(path));
    for (const std::string& name : hidden) DSEC_TRY(tree_.remove(path.empty() ? name : path + "/" + name));
    return {};
  }

  void note_time(const EntryMeta& meta) { counts_.newest_seconds = std::max(counts_.newest_seconds, meta.mtime_seconds + (meta.mtime_nanoseconds != 0 ? 1 : 0)); }

  // Forgets the files that no name leads to any more.
  void keep_reachable() {
    std::vector<bool> reached(tree_.node_count(), false);
    std::vector<std::uint32_t> open = {Tree::kRoot};
    while (!open.empty()) {
      const std::uint32_t directory = open.back();
      open.pop_back();
      for (const std::uint32_t name : tree_.sorted_names(directory)) {
        const std::uint32_t node = tree_.name(name).node;
        if (reached[node]) continue;
        reached[node] = true;
        counts_.entries++;
        if (S_ISREG(tree_.node(node).mode)) counts_.content_bytes += tree_.node(node).size;
        if (S_ISDIR(tree_.node(node).mode)) open.push_back(node);
      }
    }
    std::erase_if(files_, [&](const FileRef& file) { return !reached[file.node]; });
    // Inodes are read in the order in which they stand.
    std::sort(files_.begin(), files_.end(), [](const FileRef& a, const FileRef& b) { return std::pair(a.layer, a.nid) < std::pair(b.layer, b.nid); });
  }

  Result<void> refer_to_contents() {
    std::string tail;
    for (const FileRef& file : files_) {
      Reader& reader = *layers_[file.layer];
      DSEC_ASSIGN(const StoredInode node, reader.node(file.nid));
      DSEC_ASSIGN(std::optional<Content> content, describe_content(reader, node, room_beside(tree_.attributes(file.node)), tail));
      if (!content) continue;
      if (content->device != 0) content->device = device_number(reader.devices()[content->device - 1]);
      count_use(*content);
      tree_.node(file.node).body = contents_.refer(std::move(*content));
    }
    return {};
  }

  std::uint32_t device_number(const DeviceSlot& slot) const {
    const auto found = device_of_.find(digest_of(slot));
    DSEC_CHECK(found != device_of_.end());
    return found->second;
  }

  void count_use(const Content& content) {
    if (content.device == 0) return;
    std::uint64_t blocks = content.run.blocks;
    for (const SparseRun& sparse : content.sparse) blocks += sparse.run.blocks;
    used_[content.device] += blocks * kBlockBytes;
  }

  // The data files that the image will have beside its own: those with the most in use.
  std::set<std::uint32_t> kept_devices() const {
    std::vector<std::pair<std::uint64_t, std::uint32_t>> by_use;
    for (const auto& [device, bytes] : used_) {
      if (bytes >= options_.copied_below_bytes) by_use.emplace_back(bytes, device);
    }
    std::sort(by_use.begin(), by_use.end(), [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
    if (by_use.size() >= kMaximalDevices) by_use.resize(kMaximalDevices - 1);
    std::set<std::uint32_t> kept = {0};
    for (const auto& [bytes, device] : by_use) kept.insert(device);
    return kept;
  }

  Result<void> copy_the_rest() {
    const std::set<std::uint32_t> kept = kept_devices();
    for (const FileRef& file : files_) {
      const std::uint32_t body = tree_.node(file.node).body;
      if (body == kNone || !kept.contains(contents_.content(body).device)) DSEC_TRY(copy(file));
    }
    return {};
  }

  Result<void> copy(const FileRef& file) {
    Reader& reader = *layers_[file.layer];
    DSEC_ASSIGN(const StoredInode node, reader.node(file.nid));
    contents_.begin({.bytes = node.size, .sparse = node.layout == Layout::kChunked}, room_beside(tree_.attributes(file.node)));
    buffer_.resize(kCopyBytes);
    for (std::uint64_t at = 0; at < node.size;) {
      DSEC_ASSIGN(const Extent extent, reader.extent(node, at));
      const std::uint64_t left = extent.at + extent.length - at;
      if (extent.kind == Extent::Kind::kHole) {
        DSEC_TRY(contents_.skip(left));
        at += left;
        continue;
      }
      const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(left, buffer_.size()));
      DSEC_ASSIGN(const std::size_t got, reader.read(node, at, std::span(buffer_.data(), part)));
      DSEC_CHECK(got == part);
      DSEC_TRY(contents_.write(std::string_view(buffer_.data(), got)));
      at += got;
    }
    counts_.copied_bytes += node.size;
    DSEC_ASSIGN(tree_.node(file.node).body, contents_.finish());
    return {};
  }

  const std::vector<Reader*>& layers_;
  const MergeOptions& options_;
  Tree& tree_;
  ContentStore& contents_;
  MergeCounts counts_;
  std::map<std::string, std::uint32_t> device_of_;           // by digest, as contents count them
  std::unordered_map<std::uint64_t, std::uint32_t> made_;    // of this layer: nodes of inodes with several names
  std::vector<FileRef> files_;
  std::map<std::uint32_t, std::uint64_t> used_;              // bytes, by device
  std::string buffer_;
};

}  // namespace

std::vector<ParentData> data_of(const std::vector<Reader*>& layers) {
  std::vector<ParentData> out;
  std::set<std::string> seen;
  for (const Reader* layer : layers) {
    for (const DeviceSlot& slot : layer->devices()) {
      if (seen.insert(digest_of(slot)).second) out.push_back({digest_of(slot), slot.blocks, {}});
    }
  }
  return out;
}

Result<MergeCounts> merge_layers(const std::vector<Reader*>& layers, const MergeOptions& options, Writer& writer) { return Merge(layers, options, writer).run(); }

}  // namespace dsec::erofs
