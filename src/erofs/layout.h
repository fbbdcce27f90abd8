// Where everything of an image's metadata lies.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "erofs/attributes.h"
#include "erofs/block_space.h"
#include "erofs/content_store.h"
#include "erofs/tree.h"

namespace dsec::erofs {

struct Timestamp {
  std::int64_t seconds = 0;
  std::uint32_t nanoseconds = 0;
  auto operator<=>(const Timestamp&) const = default;
};

// One inode. All offsets are in the metadata file.
struct Placed {
  std::uint32_t node = 0;
  std::uint32_t links = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;               // i_size
  Layout layout = Layout::kFlat;
  std::uint32_t first_block = kNoBlock; // of a directory's or link's whole blocks
  std::uint32_t first_entry = 0;        // of a directory, in Layout's list
  std::uint32_t entries = 0;
  DirectoryMarks marks;
  Timestamp time;
  bool is_short = false;  // a ShortInode

  std::uint64_t inode_bytes() const { return is_short ? sizeof(ShortInode) : sizeof(Inode); }
};

// A directory's own entries stand among its names.
inline constexpr std::uint32_t kSelfEntry = 0xFFFFFFFE;
inline constexpr std::uint32_t kParentEntry = 0xFFFFFFFD;

class ImageLayout {
 public:
  // Numbers what the root reaches: directory by directory, names in order. Then
  // `used_contents()` is known, and place() finds room for it all.
  ImageLayout(const Tree& tree, const ContentStore& contents);
  // `unstated_seconds` is the time of directories that no entry described.
  Result<void> place(std::uint32_t taken_bytes, std::int64_t unstated_seconds);

  const std::vector<Placed>& inodes() const { return inodes_; }
  const std::vector<bool>& used_contents() const { return used_contents_; }
  const Placed& of_node(std::uint32_t node) const { return inodes_[index_[node]]; }
  // Numbers of names, or kSelfEntry and kParentEntry.
  const std::uint32_t* entries(const Placed& directory) const { return entries_.data() + directory.first_entry; }
  std::string_view entry_text(std::uint32_t entry) const;
  std::uint32_t entry_node(const Placed& directory, std::uint32_t entry) const;
  std::uint64_t blocks() const { return blocks_; }
  // The time that most inodes have; short ones have no other.
  Timestamp epoch() const { return epoch_; }

  // Of the inode and its attributes; what follows starts there or at the next 8.
  std::uint64_t head_bytes(const Placed& inode) const;
  // Calls take(first, last, bytes) for each block of a directory.
  template <typename Take>
  void for_each_block(const Placed& directory, Take take) const {
    std::uint32_t first = 0;
    std::uint32_t bytes = 0;
    for (std::uint32_t i = 0; i < directory.entries; i++) {
      const auto needed = static_cast<std::uint32_t>(sizeof(DirectoryEntry) + entry_text(entries(directory)[i]).size());
      if (bytes + needed > kBlockBytes) {
        take(first, i, bytes);
        first = i;
        bytes = 0;
      }
      bytes += needed;
    }
    take(first, directory.entries, bytes);
  }

 private:
  std::uint32_t number(std::uint32_t node);
  void list(std::uint32_t directory, std::vector<std::uint32_t>& subdirectories);
  void find_times(std::int64_t unstated_seconds);
  bool fits_short(const Placed& inode) const;
  void place_directory(Placed& inode, BlockSpace& space);
  void place_link(Placed& inode, BlockSpace& space);
  void place_file(Placed& inode, BlockSpace& space);

  const Tree& tree_;
  const ContentStore& contents_;
  std::vector<Placed> inodes_;
  std::vector<std::uint32_t> index_;  // by node
  std::vector<std::uint32_t> entries_;
  std::vector<bool> used_contents_;
  Timestamp epoch_;
  std::uint64_t blocks_ = 0;
};

}  // namespace dsec::erofs
