// Looks into a layer's files with our own reader, without a mount. What is in
// them may be hostile: it can give a typed error and nothing worse. Blocks:
// for worker threads.
#pragma once

#include <string>

#include "erofs/checker.h"
#include "erofs/reader.h"
#include "image/layer_store.h"

namespace dsec::image {

// kDataFault when a file of the layer is not there.
Result<erofs::Reader> open_reader(const LayerStore& store, const std::string& digest);
// Hashes all files of the layer, then checks the metadata as if it came from
// elsewhere. kDataFault with the first thing that is wrong.
Result<erofs::ImageFacts> verify_layer(const LayerStore& store, const std::string& digest);

}  // namespace dsec::image
