#include "erofs/tree_diff.h"

#include <algorithm>
#include <cstring>

namespace dsec::erofs {
namespace {

constexpr std::size_t kPiece = 256 << 10;

}  // namespace

Result<TreeDiff> TreeDiff::begin(Reader& before, Reader& after) {
  DSEC_ASSIGN(TreeWalk left, TreeWalk::begin(before, "/", Depth::kAll));
  DSEC_ASSIGN(TreeWalk right, TreeWalk::begin(after, "/", Depth::kAll));
  TreeDiff diff(before, after, std::move(left), std::move(right));
  // The roots have no entry that the walks would give.
  DSEC_ASSIGN(const StoredInode left_root, before.root());
  DSEC_ASSIGN(const StoredInode right_root, after.root());
  diff.left_ = TreeWalk::Entry{.path = "/", .node = left_root};
  diff.right_ = TreeWalk::Entry{.path = "/", .node = right_root};
  return diff;
}

Result<void> TreeDiff::advance_left() {
  DSEC_ASSIGN(left_, left_walk_.next());
  return {};
}

Result<void> TreeDiff::advance_right() {
  DSEC_ASSIGN(right_, right_walk_.next());
  return {};
}

Result<std::vector<Difference>> TreeDiff::next(std::size_t entries, std::uint64_t content_bytes) {
  std::vector<Difference> found;
  compared_bytes_ = 0;
  for (std::size_t i = 0; i < entries && !done() && compared_bytes_ < content_bytes; ++i) {
    if (left_ && (!right_ || walks_before(left_->path, right_->path))) {
      found.push_back({.path = std::move(left_->path), .before = left_->node, .after = {}, .what = {}});
      DSEC_TRY(advance_left());
    } else if (!left_ || walks_before(right_->path, left_->path)) {
      found.push_back({.path = std::move(right_->path), .before = {}, .after = right_->node, .what = {}});
      DSEC_TRY(advance_right());
    } else {
      DSEC_ASSIGN(std::vector<std::string_view> what, compare(left_->node, right_->node).within(left_->path));
      if (!what.empty()) found.push_back({.path = std::move(left_->path), .before = left_->node, .after = right_->node, .what = std::move(what)});
      DSEC_TRY(advance_left());
      DSEC_TRY(advance_right());
    }
  }
  return found;
}

Result<std::vector<std::string_view>> TreeDiff::compare(const StoredInode& a, const StoredInode& b) {
  std::vector<std::string_view> what;
  constexpr std::uint32_t kType = 0170000;
  if ((a.mode & kType) != (b.mode & kType)) return std::vector<std::string_view>{"type"};
  if (a.mode != b.mode) what.push_back("mode");
  if (a.uid != b.uid || a.gid != b.gid) what.push_back("owner");
  if (a.seconds != b.seconds || a.nanoseconds != b.nanoseconds) what.push_back("mtime");
  if (a.is_device() && a.address != b.address) what.push_back("device");
  if (a.is_symlink()) {
    DSEC_ASSIGN(const std::string left, before_->link_target(a));
    DSEC_ASSIGN(const std::string right, after_->link_target(b));
    if (left != right) what.push_back("target");
  }
  if (a.is_file()) {
    if (a.size != b.size) what.push_back("size");
    DSEC_ASSIGN(const bool same, same_content(a, b));
    if (!same) what.push_back("content");
  }
  DSEC_ASSIGN(std::vector<Attribute> left, before_->attributes(a));
  DSEC_ASSIGN(std::vector<Attribute> right, after_->attributes(b));
  const auto by_name = [](const Attribute& x, const Attribute& y) { return x.name < y.name; };
  std::sort(left.begin(), left.end(), by_name);
  std::sort(right.begin(), right.end(), by_name);
  if (left != right) what.push_back("attributes");
  return what;
}

bool TreeDiff::same_file(std::size_t a, std::size_t b) const {
  if (a == 0 || b == 0) return false;
  const DeviceSlot& left = before_->devices()[a - 1];
  const DeviceSlot& right = after_->devices()[b - 1];
  return std::memcmp(left.tag, right.tag, sizeof left.tag) == 0;
}

Result<bool> TreeDiff::same_content(const StoredInode& a, const StoredInode& b) {
  if (a.size != b.size) return false;
  left_bytes_.resize(kPiece);
  right_bytes_.resize(kPiece);
  for (std::uint64_t at = 0; at < a.size;) {
    DSEC_ASSIGN(const Extent left, before_->extent(a, at));
    DSEC_ASSIGN(const Extent right, after_->extent(b, at));
    if (left.at == at && right.at == at && left.same_place(right) && (left.kind == Extent::Kind::kHole || same_file(left.source, right.source))) {
      at += left.length;
      continue;
    }
    const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, a.size - at));
    DSEC_ASSIGN(const std::size_t left_got, before_->read(a, at, std::span(left_bytes_).first(part)));
    DSEC_ASSIGN(const std::size_t right_got, after_->read(b, at, std::span(right_bytes_).first(part)));
    if (left_got != right_got || std::memcmp(left_bytes_.data(), right_bytes_.data(), left_got) != 0) return false;
    compared_bytes_ += part;
    at += part;
  }
  return true;
}

}  // namespace dsec::erofs
