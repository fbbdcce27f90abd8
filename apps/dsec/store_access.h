// The shared store of `dsec serve --store`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "image/layer_exchange.h"
#include "serve_options.h"
#include "stored/on_demand.h"

namespace dsec {

struct SharedStore {
  std::vector<std::unique_ptr<origin::Origin>> origins;  // this node's first; none without --store
  image::LayerExchange::Options rules;                   // keys, further stores
  std::unique_ptr<image::LayerExchange> exchange;        // null without --store, and before exchange_layers()
};

// Before anything else is started: a store that is none is an error of the start.
// Makes <data-dir>/store.key, by which this node signs its layers, when there is
// none. One that this node used before may be away: it is opened when it is needed.
Result<SharedStore> open_shared_store(const ServeOptions& options);
// `on_demand` is nullptr where layers are copied whole.
Result<void> exchange_layers(SharedStore& store, image::LayerStore& layers, image::DataOnDemand* on_demand);

// Before the layers are opened. nullptr without --store, with --store-cache-mb 0,
// and, with a warning, on a host where it cannot be had.
std::unique_ptr<stored::OnDemand> open_on_demand(const ServeOptions& options, sys::DescriptorKeeper& keeper);

}  // namespace dsec
