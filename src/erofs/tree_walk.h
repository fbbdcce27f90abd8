// Every entry below a directory, a directory before what is in it, names in
// byte order. Takes no image's word for being a tree: a path longer than the
// kernel's limit is kDataFault, so that a cycle ends.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "erofs/reader.h"

namespace dsec::erofs {

enum class Depth { kChildren, kAll };

class TreeWalk {
 public:
  struct Entry {
    std::string path;  // from the image's root
    StoredInode node;
  };

  // `reader` outlives the walk. kNotFound, or kInvalidArgument for what is no directory.
  static Result<TreeWalk> begin(Reader& reader, const std::string& directory, Depth depth);
  // Goes on behind `path`, which next() gave before, in this walk or in one
  // like it; that it is still there is not asked.
  Result<void> skip_past(std::string_view path);
  // nullopt at the end.
  Result<std::optional<Entry>> next();

 private:
  struct Level {
    StoredInode directory;
    std::string path;  // "" for the root
    std::uint64_t block_index = 0;
    DirectoryBlock block;  // empty: to be read
    std::size_t entry = 0;
  };

  TreeWalk(Reader& reader, Depth depth) : reader_(&reader), depth_(depth) {}
  void enter(std::string path, const StoredInode& directory) { levels_.push_back({.directory = directory, .path = std::move(path)}); }
  // The next entry of the deepest level without taking it; nullptr at its end.
  Result<const DirectoryBlock::Entry*> peek();

  Reader* reader_;
  Depth depth_;
  std::vector<Level> levels_;
};

// As the walk orders: by components.
bool walks_before(std::string_view a, std::string_view b);

}  // namespace dsec::erofs
