// From the address of a store, as operators write it, to its origin.
#pragma once

#include <memory>
#include <string>

#include "origin/origin.h"

namespace dsec::origin {

// An absolute path, or s3://BUCKET[/PREFIX]?endpoint=URL… (s3_location.h).
Result<std::unique_ptr<Origin>> open_origin(const std::string& url, Deadline deadline);

}  // namespace dsec::origin
