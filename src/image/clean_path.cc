#include "image/clean_path.h"

namespace dsec::image {

namespace {

constexpr std::size_t kLongestName = 255;
constexpr std::size_t kLongestPath = 3500;  // leaves room for what stands in front of it, below PATH_MAX
constexpr int kDeepest = 200;

}  // namespace

Result<std::string> clean_path(std::string_view raw) {
  if (raw.empty()) return invalid_argument("an entry has no name");
  if (raw.front() == '/') return invalid_argument("an entry's path is absolute");
  if (raw.find('\0') != std::string_view::npos) return invalid_argument("an entry's path holds a NUL");
  std::string out;
  int depth = 0;
  while (!raw.empty()) {
    const std::size_t slash = raw.find('/');
    const std::string_view part = raw.substr(0, slash);
    raw = slash == std::string_view::npos ? std::string_view() : raw.substr(slash + 1);
    if (part.empty() || part == ".") continue;
    if (part == "..") return invalid_argument("an entry's path leads upwards (..)");
    if (part.size() > kLongestName) return invalid_argument("an entry's name is longer than 255 bytes");
    if (++depth > kDeepest) return invalid_argument("an entry lies more than 200 directories deep");
    if (!out.empty()) out += '/';
    out += part;
  }
  if (out.size() > kLongestPath) return invalid_argument("an entry's path is longer than 3500 bytes");
  return out;
}

}  // namespace dsec::image
