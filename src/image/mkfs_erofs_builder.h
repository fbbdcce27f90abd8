// ImageBuilder by mkfs.erofs(1) of erofs-utils 1.5 or later.
#pragma once

#include "image/image_builder.h"

namespace dsec::image {

// Runs in the confined worker, which is root of the tree's user namespace: the
// program inherits the worker's limits and filter.
class MkfsErofsBuilder final : public ImageBuilder {
 public:
  Result<void> build(const BuildRequest& request) override;
};

}  // namespace dsec::image
