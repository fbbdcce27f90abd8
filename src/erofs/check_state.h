// What the parts of the check share. Internal to the checker.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "erofs/checker.h"
#include "erofs/occupancy.h"
#include "erofs/reader.h"

namespace dsec::erofs {

struct CheckState {
  CheckState(Reader opened, const CheckLimits& given)
      : reader(std::move(opened)), occupancy(reader.metadata_bytes()), limits(given), seen(static_cast<std::size_t>(reader.metadata_bytes() / kSlotBytes)) {}

  // In the order in which they are met; those from `at` on are still to be read.
  struct Directory {
    std::uint64_t nid;
    std::uint32_t parent;  // index here
    std::string name;
    std::uint32_t subdirectories = 0;
  };
  // A file of several names.
  struct Links {
    std::uint32_t found = 0;
    std::uint32_t said = 0;
    std::uint32_t directory = 0;  // of the first name
    EntryType type = EntryType::kFile;
    std::uint64_t offset = 0;
  };

  Reader reader;
  Occupancy occupancy;
  const CheckLimits& limits;
  ImageFacts facts;
  std::vector<Directory> directories;
  std::vector<bool> seen;  // by nid
  std::unordered_map<std::uint64_t, Links> links;
  std::uint64_t listed_bytes = 0;  // of paths in facts.privileged
  std::uint64_t piece_blocks = 0;  // what the compression settings allow
  // Where the check stands, for the report.
  std::uint32_t directory = 0;
  std::string name;
  std::optional<Problem> problem;

  // Notes the problem; the error only ends the walk.
  Error refuse(std::uint64_t offset, std::string what);
  Error refuse_at(std::uint32_t in_directory, std::string entry, std::uint64_t offset, std::string what);
  std::string path_of(std::uint32_t index, const std::string& entry) const;
  // Takes metadata bytes for one structure of the inode at `offset`.
  Result<void> take(std::uint64_t offset, std::uint64_t begin, std::uint64_t end);
};

EntryType type_of(const StoredInode& node);
// The inode by itself: fields, attributes, what it holds and where.
Result<void> check_node(CheckState& state, const StoredInode& node);
Result<void> check_content(CheckState& state, const StoredInode& node);
Result<void> check_compressed(CheckState& state, const StoredInode& node);

}  // namespace dsec::erofs
