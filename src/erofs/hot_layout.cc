#include "erofs/hot_layout.h"

#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>

#include "erofs/attributes.h"
#include "erofs/stored_content.h"
#include "erofs/stored_entry.h"
#include "erofs/tree_walk.h"

namespace dsec::erofs {

namespace {

constexpr std::size_t kCopyBytes = 1 << 20;

bool same_content(const Content& a, const Content& b) {
  const auto same_runs = [](const SparseRun& x, const SparseRun& y) { return x.chunk == y.chunk && x.run.block == y.run.block && x.run.blocks == y.run.blocks; };
  return a.bytes == b.bytes && a.layout == b.layout && a.chunk_bits == b.chunk_bits && a.device == b.device && a.run.block == b.run.block && a.run.blocks == b.run.blocks &&
         a.tail == b.tail && a.pieces == b.pieces && std::equal(a.sparse.begin(), a.sparse.end(), b.sparse.begin(), b.sparse.end(), same_runs);
}

class HotLayout {
 public:
  HotLayout(Reader& layer, const TouchOrder& order, const HotLayoutOptions& options, Writer& writer)
      : layer_(layer), options_(options), writer_(writer), tree_(writer.tree()), contents_(writer.contents()), plan_(order) {}

  Result<HotCounts> run() {
    DSEC_TRY(copy_entries());
    DSEC_TRY(describe_files());
    for (std::uint32_t i = 0; i < known_.size(); i++) plan_.add(i, known_[i]);
    if (plan_.counts().touched_bytes == 0) return invalid_argument("the trace names nothing that a file of the layer has");
    for (const HotPiece& piece : plan_.take_pieces()) DSEC_TRY(copy(piece));
    DSEC_TRY(give_bodies());
    return plan_.counts();
  }

 private:
  struct FileRef {
    std::uint32_t node = 0;
    std::uint64_t nid = 0;
    std::uint32_t content = 0;
  };

  Result<void> copy_entries() {
    DSEC_ASSIGN(const StoredInode root, layer_.root());
    DSEC_TRY(copy_directory("", root));
    DSEC_ASSIGN(TreeWalk walk, TreeWalk::begin(layer_, "/", Depth::kAll));
    for (;;) {
      DSEC_ASSIGN(const std::optional<TreeWalk::Entry> entry, walk.next());
      if (!entry) return {};
      DSEC_TRY(copy_entry(entry->path.substr(1), entry->node).within(entry->path));
    }
  }

  Result<void> copy_directory(const std::string& path, const StoredInode& node) {
    if (node.uid == kUnstatedOwner) return Error(ErrorCode::kUnsupported, "one layer of an image: its image can be laid out anew");
    DSEC_ASSIGN(const EntryMeta meta, stored_meta(layer_, node));
    DSEC_TRY(writer_.make_directory(path, meta));
    DSEC_ASSIGN(const bool opaque, is_opaque(layer_, node));
    return opaque ? writer_.make_opaque(path) : Result<void>();
  }

  Result<void> copy_entry(const std::string& path, const StoredInode& node) {
    if (node.is_directory()) return copy_directory(path, node);
    if (node.uid == kUnstatedOwner) return Error(ErrorCode::kUnsupported, "one layer of an image: its image can be laid out anew");
    if (const auto known = made_.find(node.nid); known != made_.end()) return tree_.link(path, known->second);
    if (node.is_device()) return writer_.make_whiteout(path);
    DSEC_ASSIGN(const EntryMeta meta, stored_meta(layer_, node));
    DSEC_ASSIGN(const std::uint32_t made, tree_.make(path, static_cast<std::uint16_t>(node.mode), meta));
    if (node.links > 1) made_[node.nid] = made;
    if (node.is_symlink()) {
      DSEC_ASSIGN(const std::string target, layer_.link_target(node));
      if (target.size() > Tree::kLongestLink) return Error(ErrorCode::kUnsupported, "a symbolic link's target is too long");
      tree_.set_link_text(made, target);
    } else if (node.is_file() && node.size != 0) {
      tree_.node(made).size = node.size;
      files_.push_back({made, node.nid, 0});
    }
    return {};
  }

  // Equal files have one content, as they had.
  Result<void> describe_files() {
    // Inodes are read in the order in which they stand.
    std::sort(files_.begin(), files_.end(), [](const FileRef& a, const FileRef& b) { return a.nid < b.nid; });
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> by_first_block;
    std::string tail;
    for (FileRef& file : files_) {
      DSEC_ASSIGN(const StoredInode node, layer_.node(file.nid));
      DSEC_ASSIGN(std::optional<Content> content, describe_content(layer_, node, room_beside(tree_.attributes(file.node)), tail));
      if (!content) return Error(ErrorCode::kUnsupported, "the layer was not made by this writer, or by an early one");
      file.content = static_cast<std::uint32_t>(known_.size());
      const bool chunked = content->layout == Layout::kChunked;
      if (chunked ? !content->sparse.empty() : content->run.blocks != 0) {
        const std::uint32_t first = chunked ? content->sparse.front().run.block : content->run.block;
        const auto [found, fresh] = by_first_block.try_emplace({content->device, first}, file.content);
        if (!fresh) {
          if (!same_content(known_[found->second], *content)) return Error(ErrorCode::kUnsupported, "files share a part of their content");
          file.content = found->second;
          continue;
        }
      }
      content->tail = tails_.emplace_back(content->tail);
      known_.push_back(std::move(*content));
    }
    return {};
  }

  Result<void> copy(const HotPiece& piece) {
    if (options_.cancelled != nullptr && options_.cancelled->load()) return Error(ErrorCode::kCancelled, "laying the layer out anew was cancelled");
    Content& content = known_[piece.content];
    const BlockRun to{contents_.next_block(), piece.from.blocks};
    if (content.layout == Layout::kChunked) content.sparse.push_back({piece.chunk, to});
    else content.run = to;
    const std::uint64_t begin = std::uint64_t{piece.from.block} * kBlockBytes;
    const std::uint64_t end = begin + std::uint64_t{piece.from.blocks} * kBlockBytes;
    for (std::uint64_t at = begin; at < end;) {
      buffer_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kCopyBytes, end - at)));
      DSEC_TRY(layer_.read_source(piece.device, at, buffer_));
      DSEC_TRY(contents_.append_blocks(buffer_));
      at += buffer_.size();
      done_ += buffer_.size();
      if (options_.on_progress) options_.on_progress(done_, plan_.counts().data_bytes);
    }
    return {};
  }

  Result<void> give_bodies() {
    std::vector<std::uint32_t> bodies;
    for (Content& content : known_) {
      std::sort(content.sparse.begin(), content.sparse.end(), [](const SparseRun& a, const SparseRun& b) { return a.chunk < b.chunk; });
      content.device = 0;
      bodies.push_back(contents_.refer(std::move(content)));
      if (bodies.back() == kNone) return Error(ErrorCode::kTooLarge, "the tails of the layer's files pass the limit of an image");
    }
    for (const FileRef& file : files_) tree_.node(file.node).body = bodies[file.content];
    return {};
  }

  Reader& layer_;
  const HotLayoutOptions& options_;
  Writer& writer_;
  Tree& tree_;
  ContentStore& contents_;
  HotPlan plan_;
  std::unordered_map<std::uint64_t, std::uint32_t> made_;  // nodes of inodes with several names
  std::vector<FileRef> files_;
  std::vector<Content> known_;
  std::deque<std::string> tails_;
  std::string buffer_;
  std::uint64_t done_ = 0;
};

}  // namespace

Result<HotCounts> lay_out_by_touch(Reader& layer, const std::vector<TouchedRun>& touched, const HotLayoutOptions& options, Writer& writer) {
  const TouchOrder order(touched);
  return HotLayout(layer, order, options, writer).run();
}

}  // namespace dsec::erofs
