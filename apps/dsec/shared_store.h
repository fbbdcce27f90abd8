// The shared store of `dsec serve --store`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "image/layer_exchange.h"
#include "serve_options.h"

namespace dsec {

struct SharedStore {
  std::vector<std::unique_ptr<origin::Origin>> origins;  // this node's first
  std::unique_ptr<image::LayerExchange> exchange;        // null without --store
};

// Makes <data-dir>/store.key, by which this node signs its layers, when there is
// none. kDeadlineExceeded for a mount that does not answer.
Result<SharedStore> open_shared_store(const ServeOptions& options, image::LayerStore& layers);

}  // namespace dsec
