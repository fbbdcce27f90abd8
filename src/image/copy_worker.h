// What the confined worker does for COPY, ADD and WORKDIR: a part of an image whose
// content lies, where that pays, in the source's data. Nothing of either image runs.
#pragma once

#include "image/import_messages.h"
#include "image/oci_worker.h"

namespace dsec::image {

// From kFirstPassed on: the layers of request.data_files as in a merge; the first
// request.stack.size() of them are what lies below, lowest first, and one more, where
// there is one, is the source. Facts: "digest" of what was put there, "empty" if that
// was nothing.
Result<ImportResult> copy_into_part(const ImportRequest& request, const StepProgress& progress);

}  // namespace dsec::image
