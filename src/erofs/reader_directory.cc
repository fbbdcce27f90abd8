// Directories: blocks of entries, with their names in byte order over all blocks.
#include <algorithm>
#include <cstring>

#include "erofs/reader.h"

namespace dsec::erofs {
namespace {

DirectoryEntry entry_at(const std::vector<char>& bytes, std::size_t index) {
  DirectoryEntry entry{};
  std::memcpy(&entry, bytes.data() + index * sizeof entry, sizeof entry);
  return entry;
}

// The last name ends where its block does, or at the first zero.
std::size_t end_of_names(const std::vector<char>& bytes, std::size_t last_name) {
  const auto zero = std::find(bytes.begin() + static_cast<std::ptrdiff_t>(last_name), bytes.end(), '\0');
  return static_cast<std::size_t>(zero - bytes.begin());
}

}  // namespace

Result<DirectoryBlock> Reader::directory_block(const StoredInode& directory, std::uint64_t index) {
  if (!directory.is_directory()) return invalid_argument("not a directory");
  DSEC_CHECK(index < directory.blocks());
  const std::uint64_t at = index * kBlockBytes;
  DirectoryBlock block;
  block.bytes.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kBlockBytes, directory.size - at)));
  DSEC_TRY(read(directory, at, block.bytes));
  const auto wrong = [&](std::string_view what) {
    return fault_at(directory.offset, "block " + std::to_string(index) + " of the directory: " + std::string(what));
  };
  if (block.bytes.size() < sizeof(DirectoryEntry)) return wrong("it has no room for an entry");
  const std::size_t names = entry_at(block.bytes, 0).name_offset;
  if (names == 0 || names % sizeof(DirectoryEntry) != 0 || names >= block.bytes.size()) return wrong("the first name's place is wrong");
  const std::size_t count = names / sizeof(DirectoryEntry);
  for (std::size_t i = 0; i < count; ++i) {
    const DirectoryEntry entry = entry_at(block.bytes, i);
    const std::size_t begin = entry.name_offset;
    if (begin < names || begin >= block.bytes.size()) return wrong("a name lies outside of the block");
    const std::size_t end = i + 1 < count ? entry_at(block.bytes, i + 1).name_offset : end_of_names(block.bytes, begin);
    if (end <= begin || end > block.bytes.size() || end - begin > kMaximalNameBytes) return wrong("a name is empty, too long or out of order");
    block.entries.push_back({.nid = entry.nid, .type = entry.type, .name = std::string_view(block.bytes.data() + begin, end - begin)});
    block.names_end = end;
  }
  return block;
}

Result<std::optional<DirectoryBlock::Entry>> Reader::find(const StoredInode& directory, std::string_view name, DirectoryBlock& block) {
  // The last block whose first name is not behind `name`.
  std::uint64_t low = 0;
  std::uint64_t high = directory.blocks();
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    DSEC_ASSIGN(const DirectoryBlock probe, directory_block(directory, middle));
    (probe.entries.front().name <= name ? low : high) = middle;
  }
  if (high == low) return std::optional<DirectoryBlock::Entry>();
  DSEC_ASSIGN(block, directory_block(directory, low));
  const auto found = std::lower_bound(block.entries.begin(), block.entries.end(), name,
                                      [](const DirectoryBlock::Entry& entry, std::string_view wanted) { return entry.name < wanted; });
  if (found == block.entries.end() || found->name != name) return std::optional<DirectoryBlock::Entry>();
  return std::optional(*found);
}

Result<StoredInode> Reader::lookup(std::string_view path) {
  if (!path.starts_with('/') || path.find('\0') != std::string_view::npos) return invalid_argument("the path is not absolute");
  DSEC_ASSIGN(StoredInode node, root());
  DirectoryBlock block;
  for (std::string_view rest = path; !rest.empty();) {
    rest.remove_prefix(1);
    const std::string_view name = rest.substr(0, rest.find('/'));
    rest.remove_prefix(name.size());
    if (name == "..") return invalid_argument("the path has '..' in it");
    if (name.empty() || name == ".") continue;
    if (!node.is_directory()) return Error(ErrorCode::kNotFound, "no file " + std::string(path));
    DSEC_ASSIGN(const std::optional<DirectoryBlock::Entry> entry, find(node, name, block));
    if (!entry) return Error(ErrorCode::kNotFound, "no file " + std::string(path));
    DSEC_ASSIGN(node, this->node(entry->nid));
  }
  return node;
}

}  // namespace dsec::erofs
