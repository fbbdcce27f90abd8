// The tree of an image while it is made: every entry but its content.
//
// Entries are numbered; names, kept apart, lead to them, so that hard links are
// several names of one entry and a name can change what it leads to. What no
// name reaches in the end is left out of the image. About 150 bytes an entry.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "erofs/entry.h"

namespace dsec::erofs {

inline constexpr std::uint32_t kNone = 0xFFFFFFFF;
// What a layer by itself cannot say has this owner, which no entry has: a directory
// that only the entries in it imply, and, as a symbolic link to the target's path,
// a hard link to a file of a lower layer.
inline constexpr std::uint32_t kUnstatedOwner = 0xFFFFFFFF;

struct Node {
  std::uint64_t size = 0;
  std::int64_t seconds = 0;
  std::uint32_t nanoseconds = 0;
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::uint16_t mode = 0;  // with the type
  std::uint16_t depth = 0;         // of a directory: 0 is the root
  std::uint32_t body = kNone;      // file: its content; link: its text; directory: its newest name
  std::uint32_t attributes = kNone;
  std::uint32_t parent = 0;        // of a directory
  bool stated = false;             // a directory that an entry described
  bool linked_below = false;       // kLayer: a hard link to what a lower layer has
  bool opaque = false;             // a directory that hides what lies below it in an overlay
};

struct Name {
  std::uint32_t directory = 0;
  std::uint32_t node = kNone;   // kNone: removed
  std::uint32_t older = kNone;  // the next name of the same directory
  std::uint32_t text = 0;
  std::uint8_t length = 0;
};

class Tree {
 public:
  static constexpr std::uint32_t kRoot = 0;

  explicit Tree(Overlaps overlaps);

  // Makes `path` and its missing parents; the name is free or an error says why
  // not. The entry has the type of `mode`, no size and no body.
  Result<std::uint32_t> make(const std::string& path, std::uint16_t mode, const EntryMeta& meta);
  Result<void> make_directory(const std::string& path, const EntryMeta& meta);
  Result<void> make_hard_link(const std::string& path, const std::string& target);
  // What a name leads to, itself if that is a link; kNone: nothing.
  Result<std::uint32_t> find(const std::string& path);
  // One more name.
  Result<void> link(const std::string& path, std::uint32_t node);
  Result<void> ensure_directory(const std::string& path, mode_t mode);
  // The directory `path` or, if nothing is there, a new one.
  Result<void> make_opaque(const std::string& path);
  Result<void> remove(const std::string& path);
  Result<std::vector<std::string>> names(const std::string& path);

  Node& node(std::uint32_t id) { return nodes_[id]; }
  const Node& node(std::uint32_t id) const { return nodes_[id]; }
  std::uint32_t node_count() const { return static_cast<std::uint32_t>(nodes_.size()); }
  std::uint64_t implied_directories() const { return implied_directories_; }

  // The names of a directory that lead somewhere, in byte order.
  std::vector<std::uint32_t> sorted_names(std::uint32_t directory) const;
  const Name& name(std::uint32_t id) const { return names_[id]; }
  std::string_view text(const Name& name) const { return std::string_view(texts_).substr(name.text, name.length); }

  // Not empty, and no longer than kLongestLink.
  static constexpr std::size_t kLongestLink = 3500;
  void set_link_text(std::uint32_t node, const std::string& target);
  // For an image that is one layer of several: see kUnstatedOwner.
  void mark_unstated();
  const std::string& link_text(std::uint32_t node) const { return link_texts_[nodes_[node].body]; }
  const Attributes& attributes(std::uint32_t node) const;

 private:
  struct Place {
    std::uint32_t directory;
    std::string_view name;
  };
  enum class Missing { kReport, kMake };

  Result<std::uint32_t> walk(std::uint32_t from, std::string_view path, Missing missing, int& links_left);
  // Where the link `child`, found in `at`, leads.
  Result<std::uint32_t> follow(std::uint32_t at, std::uint32_t child, std::string_view name, Missing missing, int& links_left);
  // A directory where nothing is, or where this layer has hidden what lies below.
  Result<std::uint32_t> imply_directory(std::uint32_t parent, std::string_view name, bool over_whiteout);
  bool is_whiteout(std::uint32_t node) const;
  // An existing directory, or kNone.
  Result<std::uint32_t> directory(std::string_view path);
  // Where a name is or will be; its directory is made if missing.
  Result<Place> place(const std::string& path);
  std::uint32_t find_name(std::uint32_t directory, std::string_view text);
  Result<void> put(Place place, std::uint32_t node);
  Result<std::uint32_t> new_directory(std::uint32_t parent, std::string_view name, mode_t mode);
  std::uint32_t new_node(std::uint16_t mode, const EntryMeta& meta);
  void describe(Node& node, const EntryMeta& meta);
  std::uint64_t hash_of(std::uint32_t directory, std::string_view text) const;
  std::uint32_t* slot_of(std::uint32_t directory, std::string_view text);
  void grow();

  const Overlaps overlaps_;
  const std::uint64_t seed_;
  std::vector<Node> nodes_;
  std::vector<Name> names_;
  std::vector<std::uint32_t> slots_;  // an open hash table of names_
  std::string texts_;
  std::vector<std::string> link_texts_;
  std::vector<Attributes> attribute_sets_;
  std::string cached_path_;           // what cached_directory_ is; kNone: nothing
  std::uint32_t cached_directory_ = kNone;
  std::uint64_t implied_directories_ = 0;
};

}  // namespace dsec::erofs
