// What the confined worker does for a pack: the upper of a sandbox's overlay becomes a layer.
#pragma once

#include <vector>

#include "base/result.h"
#include "image/import_messages.h"
#include "image/oci_worker.h"
#include "image/residue.h"
#include "image/worker_layer.h"

namespace dsec::image {

struct OpenUpper {
  LayerFilesInWork layer;
  std::vector<ResidueRule> rules;
};

// Before the worker gives up the ids by which it may open them.
Result<OpenUpper> open_upper(const ImportRequest& request);
// Standard input is the upper.
Result<ImportResult> import_upper(const ImportRequest& request, OpenUpper& open, const StepProgress& progress);

}  // namespace dsec::image
