// A tree of files as a test means it: given to a sink of entries, and compared
// with what the kernel shows.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "erofs/entry.h"

namespace dsec {

struct ModelFile {
  mode_t mode = 0;  // with the type
  erofs::EntryMeta meta;
  std::string content;                       // of a file; a link's target
  std::set<std::size_t> holes;               // numbers of 4 KiB blocks that are said to be holes
  std::map<std::string, std::string> marks;  // attributes that the writer adds
};

class TreeModel {
 public:
  TreeModel();
  std::map<std::string, std::shared_ptr<ModelFile>> files;  // by path, "" is the root

  // A tree of some hundred entries with everything in it, by the seed.
  static TreeModel random(std::uint64_t seed);
  void directory(const std::string& path, erofs::EntryMeta meta = {});
  std::shared_ptr<ModelFile> file(const std::string& path, std::string content, erofs::EntryMeta meta = {});
  void symlink(const std::string& path, const std::string& target, erofs::EntryMeta meta = {});
  void fifo(const std::string& path, erofs::EntryMeta meta = {});
  void link(const std::string& path, const std::string& target) { files[path] = files.at(target); }

  // Every entry, parents first; hard links as links.
  Result<void> give_to(erofs::EntrySink& sink) const;
  // The differences to what stands below this directory; empty when equal.
  std::string compare(const std::string& root) const;
};

// Every path below `root` with type, size, owner, mode, content and attributes, for
// comparing two trees that the kernel shows.
std::map<std::string, std::string> listing(const std::string& root);

}  // namespace dsec
