#include "image/parent_layer.h"

namespace dsec::image {

Result<LayerStore::OpenFiles> open_parent(const LayerStore& layers, const std::string& digest) {
  DSEC_ASSIGN(const model::LayerRecord record, layers.find(digest));
  if (record.kind == model::LayerKind::kVerifier) return Error(ErrorCode::kPermissionDenied, "a layer of kind verifier is no parent of others: " + digest);
  return layers.open_files(digest);
}

}  // namespace dsec::image
