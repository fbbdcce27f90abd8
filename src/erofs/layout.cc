#include "erofs/layout.h"

#include <sys/stat.h>

#include <algorithm>

namespace dsec::erofs {

namespace {

constexpr std::uint32_t kMostShortEntries = 10'000'000;  // far below 4 GiB of names

}  // namespace

ImageLayout::ImageLayout(const Tree& tree, const ContentStore& contents)
    : tree_(tree), contents_(contents), index_(tree.node_count(), kNone), used_contents_(contents.count(), false) {
  std::vector<std::uint32_t> open = {Tree::kRoot};
  number(Tree::kRoot);
  while (!open.empty()) {
    const std::uint32_t directory = open.back();
    open.pop_back();
    std::vector<std::uint32_t> subdirectories;
    list(directory, subdirectories);
    open.insert(open.end(), subdirectories.rbegin(), subdirectories.rend());
  }
}

std::uint32_t ImageLayout::number(std::uint32_t node) {
  if (index_[node] != kNone) return index_[node];
  index_[node] = static_cast<std::uint32_t>(inodes_.size());
  const Node& entry = tree_.node(node);
  inodes_.push_back({.node = node, .size = entry.size});
  if (S_ISDIR(entry.mode)) {
    inodes_.back().links = 2;
    inodes_.back().marks.opaque = entry.opaque;
  } else if (S_ISREG(entry.mode) && entry.body != kNone) {
    used_contents_[entry.body] = true;
  }
  return index_[node];
}

// Files get their numbers here, directories too: their inodes stand near their names.
void ImageLayout::list(std::uint32_t directory, std::vector<std::uint32_t>& subdirectories) {
  std::vector<std::uint32_t> names = tree_.sorted_names(directory);
  const auto at = index_[directory];
  for (const std::uint32_t id : names) {
    const std::uint32_t node = tree_.name(id).node;
    const std::uint32_t inode = number(node);
    const std::uint16_t type = tree_.node(node).mode & S_IFMT;
    if (type == S_IFCHR) inodes_[at].marks.holds_whiteouts = true;
    if (type == S_IFDIR) {
      inodes_[at].links++;
      subdirectories.push_back(node);
    } else {
      inodes_[inode].links++;
    }
  }
  for (const std::uint32_t own : {kSelfEntry, kParentEntry}) {
    const auto before = [&](std::uint32_t id) { return entry_text(id) < entry_text(own); };
    names.insert(std::partition_point(names.begin(), names.end(), before), own);
  }
  inodes_[at].first_entry = static_cast<std::uint32_t>(entries_.size());
  inodes_[at].entries = static_cast<std::uint32_t>(names.size());
  entries_.insert(entries_.end(), names.begin(), names.end());
}

std::string_view ImageLayout::entry_text(std::uint32_t entry) const {
  if (entry == kSelfEntry) return ".";
  if (entry == kParentEntry) return "..";
  return tree_.text(tree_.name(entry));
}

std::uint32_t ImageLayout::entry_node(const Placed& directory, std::uint32_t entry) const {
  if (entry == kSelfEntry) return directory.node;
  if (entry == kParentEntry) return tree_.node(directory.node).parent;
  return tree_.name(entry).node;
}

std::uint64_t ImageLayout::head_bytes(const Placed& inode) const {
  return inode.inode_bytes() + attribute_area_bytes(stored_attributes(tree_.attributes(inode.node), inode.marks));
}

void ImageLayout::find_times(std::int64_t unstated_seconds) {
  std::vector<Timestamp> times;
  times.reserve(inodes_.size());
  for (Placed& inode : inodes_) {
    const Node& node = tree_.node(inode.node);
    const bool timed = !S_ISDIR(node.mode) || node.stated;
    inode.time = timed ? Timestamp{node.seconds, node.nanoseconds} : Timestamp{unstated_seconds, 0};
    times.push_back(inode.time);
  }
  std::sort(times.begin(), times.end());
  std::ptrdiff_t most = 0;
  for (auto first = times.begin(); first != times.end();) {
    const auto last = std::upper_bound(first, times.end(), *first);
    if (last - first > most) {
      most = last - first;
      epoch_ = *first;
    }
    first = last;
  }
}

bool ImageLayout::fits_short(const Placed& inode) const {
  const Node& node = tree_.node(inode.node);
  if (inode.entries > kMostShortEntries) return false;
  return inode.time == epoch_ && inode.size <= 0xFFFFFFFF && node.uid <= 0xFFFF && node.gid <= 0xFFFF && inode.links <= 0xFFFF;
}

Result<void> ImageLayout::place(std::uint32_t taken_bytes, std::int64_t unstated_seconds) {
  find_times(unstated_seconds);
  BlockSpace space(taken_bytes);
  for (Placed& inode : inodes_) {
    inode.is_short = fits_short(inode);
    switch (tree_.node(inode.node).mode & S_IFMT) {
      case S_IFDIR: place_directory(inode, space); break;
      case S_IFLNK: place_link(inode, space); break;
      case S_IFREG: place_file(inode, space); break;
      default: inode.offset = space.place(head_bytes(inode)); break;
    }
  }
  blocks_ = space.blocks();
  if (blocks_ >= kNoBlock / 2) return Error(ErrorCode::kTooLarge, "the image's metadata passes 8 TiB");
  DSEC_CHECK(inodes_[0].offset / kSlotBytes <= 0xFFFF);
  return {};
}

void ImageLayout::place_directory(Placed& inode, BlockSpace& space) {
  std::uint64_t blocks = 0;
  std::uint32_t last = 0;
  for_each_block(inode, [&](std::uint32_t, std::uint32_t, std::uint32_t bytes) {
    blocks++;
    last = bytes;
  });
  inode.size = (blocks - 1) * kBlockBytes + last;
  const std::uint64_t head = head_bytes(inode);
  const bool tail = head + last <= kBlockBytes;
  inode.layout = tail ? Layout::kInline : Layout::kFlat;
  inode.offset = space.place(head + (tail ? last : 0));
  if (const std::uint64_t whole = tail ? blocks - 1 : blocks; whole != 0) inode.first_block = static_cast<std::uint32_t>(space.whole_blocks(whole));
}

void ImageLayout::place_link(Placed& inode, BlockSpace& space) {
  const std::uint64_t head = head_bytes(inode);
  const bool tail = head + inode.size <= kBlockBytes;
  inode.layout = tail ? Layout::kInline : Layout::kFlat;
  inode.offset = space.place(head + (tail ? inode.size : 0));
  if (!tail) inode.first_block = static_cast<std::uint32_t>(space.whole_blocks(1));
}

void ImageLayout::place_file(Placed& inode, BlockSpace& space) {
  const std::uint64_t head = head_bytes(inode);
  const std::uint64_t indexed = (head + 7) / 8 * 8;
  const std::uint32_t body = tree_.node(inode.node).body;
  std::uint64_t bytes = head;
  if (body != kNone) {
    const Content& content = contents_.content(body);
    inode.layout = content.layout;
    const std::uint64_t blocks = (inode.size + kBlockBytes - 1) / kBlockBytes;
    switch (content.layout) {
      case Layout::kFlat: break;
      case Layout::kInline: bytes = head + content.tail.size(); break;
      case Layout::kCompressed: bytes = indexed + sizeof(CompressedHeader) + kCompressedIndexGap + blocks * sizeof(ClusterIndex); break;
      case Layout::kChunked: bytes = indexed + ((blocks + (1ULL << content.chunk_bits) - 1) >> content.chunk_bits) * sizeof(ChunkIndex); break;
    }
  }
  inode.offset = space.place(bytes);
}

}  // namespace dsec::erofs
