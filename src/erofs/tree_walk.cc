#include "erofs/tree_walk.h"

#include <algorithm>

namespace dsec::erofs {
namespace {

constexpr std::size_t kLongestPath = 4096;

std::string clean(std::string_view path) {
  std::string out;
  while (!path.empty()) {
    path.remove_prefix(std::min(path.find_first_not_of('/'), path.size()));
    const std::string_view name = path.substr(0, path.find('/'));
    path.remove_prefix(name.size());
    if (!name.empty() && name != ".") out.append("/").append(name);
  }
  return out;
}

}  // namespace

bool walks_before(std::string_view a, std::string_view b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    const auto rank = [](char c) { return c == '/' ? 0 : static_cast<unsigned char>(c); };
    return rank(x) < rank(y);
  });
}

Result<TreeWalk> TreeWalk::begin(Reader& reader, const std::string& directory, Depth depth) {
  DSEC_ASSIGN(const StoredInode node, reader.lookup(directory));
  if (!node.is_directory()) return invalid_argument("not a directory: " + directory);
  TreeWalk walk(reader, depth);
  walk.enter(clean(directory), node);
  return walk;
}

Result<const DirectoryBlock::Entry*> TreeWalk::peek() {
  Level& level = levels_.back();
  while (true) {
    if (level.block.entries.empty()) {
      if (level.block_index == level.directory.blocks()) return nullptr;
      DSEC_ASSIGN(level.block, reader_->directory_block(level.directory, level.block_index));
    }
    for (; level.entry < level.block.entries.size(); ++level.entry) {
      const DirectoryBlock::Entry& entry = level.block.entries[level.entry];
      if (entry.name != "." && entry.name != "..") return &entry;
    }
    level.block = {};
    level.entry = 0;
    level.block_index++;
  }
}

Result<std::optional<TreeWalk::Entry>> TreeWalk::next() {
  while (!levels_.empty()) {
    DSEC_ASSIGN(const DirectoryBlock::Entry* entry, peek());
    if (entry == nullptr) {
      levels_.pop_back();
      continue;
    }
    Entry found{.path = levels_.back().path + "/" + std::string(entry->name), .node = {}};
    if (found.path.size() > kLongestPath) return Error(ErrorCode::kDataFault, "the tree is deeper than a path can be long");
    DSEC_ASSIGN(found.node, reader_->node(entry->nid).within(found.path));
    levels_.back().entry++;
    if (depth_ == Depth::kAll && found.node.is_directory()) enter(found.path, found.node);
    return std::optional(std::move(found));
  }
  return std::optional<Entry>();
}

Result<void> TreeWalk::skip_past(std::string_view path) {
  const std::string& base = levels_.front().path;
  if (!path.starts_with(base + "/")) return invalid_argument("the cursor belongs to another listing");
  std::string_view rest = path.substr(base.size());
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::string_view name = rest.substr(0, rest.find('/'));
    rest.remove_prefix(name.size());
    DSEC_ASSIGN(const DirectoryBlock::Entry* entry, peek());
    while (entry != nullptr && entry->name < name) {
      levels_.back().entry++;
      DSEC_ASSIGN(entry, peek());
    }
    if (entry == nullptr || entry->name != name) return {};
    DSEC_ASSIGN(const StoredInode node, reader_->node(entry->nid));
    levels_.back().entry++;
    if (depth_ != Depth::kAll || !node.is_directory()) return {};
    enter(levels_.back().path + "/" + std::string(name), node);
  }
  return {};
}

}  // namespace dsec::erofs
