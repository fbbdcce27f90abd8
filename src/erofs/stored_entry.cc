#include "erofs/stored_entry.h"

#include <algorithm>

#include "erofs/attributes.h"

namespace dsec::erofs {

Result<EntryMeta> stored_meta(Reader& reader, const StoredInode& node) {
  if (node.seconds < 0) return fault_at(node.offset, "a time before 1970");
  EntryMeta meta{.mode = node.mode & 07777, .uid = node.uid, .gid = node.gid, .mtime_seconds = node.seconds, .mtime_nanoseconds = node.nanoseconds, .attributes = {}};
  DSEC_ASSIGN(std::vector<Attribute> attributes, reader.attributes(node));
  for (Attribute& one : attributes) {
    if (attribute_allowed(one.name)) meta.attributes.emplace_back(std::move(one.name), std::move(one.value));
  }
  std::sort(meta.attributes.begin(), meta.attributes.end());
  DSEC_TRY(check_attributes(meta.attributes));
  return meta;
}

Result<bool> is_opaque(Reader& reader, const StoredInode& directory) {
  DSEC_ASSIGN(const std::vector<Attribute> attributes, reader.attributes(directory));
  return std::any_of(attributes.begin(), attributes.end(), [](const Attribute& one) { return one.name == "trusted.overlay.opaque"; });
}

}  // namespace dsec::erofs
