#include "erofs/path_patterns.h"

#include <fnmatch.h>

#include <algorithm>

namespace dsec::erofs {

bool matches_any(const std::vector<std::string>& patterns, const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const char* const name = path.c_str() + (slash == std::string::npos ? 0 : slash + 1);
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    const bool whole = pattern.find('/') != std::string::npos;
    const char* const from = pattern.c_str() + (pattern.starts_with('/') ? 1 : 0);
    return ::fnmatch(from, whole ? path.c_str() : name, FNM_PATHNAME) == 0;
  });
}

}  // namespace dsec::erofs
