// Patterns that name paths of a tree.
#pragma once

#include <string>
#include <vector>

namespace dsec::erofs {

// A pattern with a slash is matched with the whole path from the root, one without
// with the last name; * does not match a slash. `path` is clean and relative.
bool matches_any(const std::vector<std::string>& patterns, const std::string& path);

}  // namespace dsec::erofs
