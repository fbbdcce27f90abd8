// What a layer in a shared store consists of.
//
// The object is one line of base64, a builder's signature (model/builder_key.h),
// and JSON; this text is signed as it is, so that nobody has to agree on a form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/layer.h"

namespace dsec::origin {

struct ManifestData {
  std::string hex;  // of the data object
  std::uint64_t bytes = 0;
  std::string index_hex;  // of its chunk index
  bool operator==(const ManifestData&) const = default;
};

struct Manifest {
  std::uint64_t metadata_bytes = 0;
  std::vector<ManifestData> data;  // in the order of the metadata's device table
  model::LayerRecord record;       // its digest is the layer's
  bool operator==(const Manifest&) const = default;
};

// Of the largest manifest that is read.
inline constexpr std::size_t kMaxManifestBytes = 1 << 20;

std::string to_text(const Manifest& manifest);
// kDataFault for what is no manifest of the layer `hex`.
Result<Manifest> parse_manifest(std::string_view text, const std::string& hex);

// To the bytes of the object and back. Keys are PEM. kPermissionDenied when none
// of `trusted` made the signature.
Result<std::string> seal_manifest(const Manifest& manifest, std::string_view private_key);
Result<Manifest> unseal_manifest(std::string_view bytes, const std::string& hex, const std::vector<std::string>& trusted);

}  // namespace dsec::origin
