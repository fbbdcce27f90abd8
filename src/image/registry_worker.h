// skopeo, run by the confined worker: what an image in a registry is made of, and
// those of its layers that are not here.
//
// The worker reaches what RegistryGate lets it. An authfile comes in on standard
// input and is kept in the worker's memory file system, which goes with it.
#pragma once

#include "base/result.h"
#include "image/import_messages.h"

namespace dsec::image {

// The manifest for request.architecture and its configuration. The result's
// facts["reference"] names that manifest by its digest.
Result<ImportResult> inspect_registry(const ImportRequest& request);
// request.reference, by digest, into archive/, an OCI layout; in place of the blobs of
// request.known stand empty files.
Result<ImportResult> fetch_from_registry(const ImportRequest& request);

}  // namespace dsec::image
