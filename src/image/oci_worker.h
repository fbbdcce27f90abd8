// What the confined worker does for images of several layers. Each step runs in a
// worker of its own, which sees what it is given and nothing else.
#pragma once

#include <functional>
#include <string_view>

#include "base/result.h"
#include "image/import_messages.h"

namespace dsec::image {

using StepProgress = std::function<void(std::string_view stage, std::uint64_t done_bytes)>;

// Unpacks the archive on standard input and reads what the image is made of.
Result<ImportResult> receive_archive(const ImportRequest& request, const StepProgress& progress);
// Standard input, decompressed, into kFirstPassed.
Result<ImportResult> decompress_layer(const ImportRequest& request);
// The tar on standard input becomes a layer by itself, whiteouts and all.
Result<ImportResult> convert_layer(const ImportRequest& request, const StepProgress& progress);
// From kFirstPassed on: for each part its metadata and its data files.
Result<ImportResult> merge_parts(const ImportRequest& request, const StepProgress& progress);

}  // namespace dsec::image
