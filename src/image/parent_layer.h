// Layers whose content others may refer to instead of having it themselves.
#pragma once

#include <string>

#include "image/layer_store.h"

namespace dsec::image {

// The one way to a parent's files. kPermissionDenied for kind verifier, whose bytes
// belong to no other layer.
Result<LayerStore::OpenFiles> open_parent(const LayerStore& layers, const std::string& digest);

}  // namespace dsec::image
