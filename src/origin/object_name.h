// The names of objects in a shared store.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace dsec::origin {

// kData, kMetadata, kIndex and kLease are named by the SHA-256 of their bytes;
// kManifest by the digest of the layer that it speaks of; kCondemned and kDeleting,
// the marks of garbage collection (collection.h), by the object that they speak of;
// kTrace by the data object; kPackedData and kPackedMetadata (at_rest_origin.h) by what is packed.
enum class ObjectKind { kData, kMetadata, kIndex, kManifest, kLease, kCondemned, kDeleting, kTrace, kPackedData, kPackedMetadata };

struct ObjectName {
  ObjectKind kind = ObjectKind::kData;
  std::string hex;  // 64 lower-case digits
  // "ab/abcdef….data": where it stands in every kind of store.
  std::string path() const;
  bool operator==(const ObjectName&) const = default;
};

bool names_its_bytes(ObjectKind kind);
// kInvalidArgument for what is no path() of any name.
Result<ObjectName> parse_object_path(std::string_view path);

}  // namespace dsec::origin
