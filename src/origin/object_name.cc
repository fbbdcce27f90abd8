#include "origin/object_name.h"

#include <array>
#include <utility>

namespace dsec::origin {

namespace {

constexpr std::size_t kHexDigits = 64;
constexpr std::size_t kFolderDigits = 2;
constexpr std::array<std::pair<ObjectKind, std::string_view>, 10> kSuffixes = {{
    {ObjectKind::kData, ".data"},
    {ObjectKind::kMetadata, ".meta"},
    {ObjectKind::kIndex, ".index"},
    {ObjectKind::kManifest, ".json"},
    {ObjectKind::kLease, ".lease"},
    {ObjectKind::kCondemned, ".condemned"},
    {ObjectKind::kDeleting, ".deleting"},
    {ObjectKind::kTrace, ".trace"},
    {ObjectKind::kPackedData, ".dataz"},
    {ObjectKind::kPackedMetadata, ".metaz"},
}};

bool is_hex(std::string_view text) { return text.size() == kHexDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos; }

}  // namespace

std::string ObjectName::path() const {
  DSEC_CHECK(is_hex(hex));
  std::string out = hex.substr(0, kFolderDigits) + "/" + hex;
  for (const auto& [of, suffix] : kSuffixes)
    if (of == kind) out += suffix;
  return out;
}

bool names_its_bytes(ObjectKind kind) {
  return kind == ObjectKind::kData || kind == ObjectKind::kMetadata || kind == ObjectKind::kIndex || kind == ObjectKind::kLease;
}

Result<ObjectName> parse_object_path(std::string_view path) {
  constexpr std::size_t kPrefix = kFolderDigits + 1;
  if (path.size() > kPrefix + kHexDigits && path[kFolderDigits] == '/') {
    const std::string_view hex = path.substr(kPrefix, kHexDigits);
    const std::string_view suffix = path.substr(kPrefix + kHexDigits);
    for (const auto& [kind, known] : kSuffixes)
      if (suffix == known && is_hex(hex) && path.starts_with(hex.substr(0, kFolderDigits))) return ObjectName{kind, std::string(hex)};
  }
  return invalid_argument("\"" + std::string(path) + "\" is not the name of an object");
}

}  // namespace dsec::origin
