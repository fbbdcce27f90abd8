// What differs between two images, entry by entry.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "erofs/tree_walk.h"

namespace dsec::erofs {

struct Difference {
  std::string path;
  std::optional<StoredInode> before;  // absent: added
  std::optional<StoredInode> after;   // absent: removed
  // Of what is in both: type, mode, owner, mtime, size, content, target, device, attributes.
  std::vector<std::string_view> what;
};

// Reads both trees in step; content is read only where neither size nor place
// decides. One thread at a time. The readers outlive it.
class TreeDiff {
 public:
  static Result<TreeDiff> begin(Reader& before, Reader& after);
  // Looks at no more than `entries`, and stops after the first file for which
  // `content_bytes` have been compared in this call. Answers what it found,
  // perhaps nothing; done() tells the end.
  Result<std::vector<Difference>> next(std::size_t entries, std::uint64_t content_bytes);
  bool done() const { return !left_ && !right_; }

 private:
  TreeDiff(Reader& before, Reader& after, TreeWalk left, TreeWalk right)
      : before_(&before), after_(&after), left_walk_(std::move(left)), right_walk_(std::move(right)) {}
  Result<void> advance_left();
  Result<void> advance_right();
  Result<std::vector<std::string_view>> compare(const StoredInode& a, const StoredInode& b);
  Result<bool> same_content(const StoredInode& a, const StoredInode& b);
  // A data file is known by its digest; the metadata is nobody else's.
  bool same_file(std::size_t a, std::size_t b) const;

  Reader* before_;
  Reader* after_;
  TreeWalk left_walk_;
  TreeWalk right_walk_;
  std::optional<TreeWalk::Entry> left_;
  std::optional<TreeWalk::Entry> right_;
  std::uint64_t compared_bytes_ = 0;
  std::vector<char> left_bytes_;
  std::vector<char> right_bytes_;
};

}  // namespace dsec::erofs
