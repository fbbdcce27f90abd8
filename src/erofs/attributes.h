// Extended attributes: which ones an image may hold, and how they lie in it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "erofs/entry.h"

namespace dsec::erofs {

// user.* but overlayfs's own, and security.capability. Everything else is dropped by
// who reads an archive and refused by the writer.
bool attribute_allowed(std::string_view name);
// Names, sizes, and that a file capability is one.
Result<void> check_attributes(const Attributes& attributes);

struct StoredAttribute {
  std::uint8_t prefix;
  std::string_view name;  // without the prefix
  std::string_view value;
};

// What an inode holds: its entry's attributes, and on directories overlayfs's marks.
struct DirectoryMarks {
  bool opaque = false;
  bool holds_whiteouts = false;
};
std::vector<StoredAttribute> stored_attributes(const Attributes& attributes, DirectoryMarks marks);
// Of the whole area behind an inode; 0 without attributes.
std::size_t attribute_area_bytes(const std::vector<StoredAttribute>& attributes);
// What an inode with them leaves free of a block, for a file's tail.
std::uint64_t room_beside(const Attributes& attributes);
void put_attributes(char* out, const std::vector<StoredAttribute>& attributes);

}  // namespace dsec::erofs
