// From the address of a store, as operators write it, to its origin.
#pragma once

#include <memory>
#include <string>

#include "origin/directory_origin.h"

namespace dsec::origin {

// /DIRECTORY[?usrbio=LIBRARY|off] or s3://BUCKET[/PREFIX]?endpoint=URL…
// (s3_location.h); either with the parameter at-rest=zstd when data is to be
// stored compressed.
Result<std::unique_ptr<Origin>> open_origin(std::string url, Deadline deadline);
// The same without that.
std::string without_form(std::string url);
// Of an address that is a path.
DirectoryOrigin::Options directory_options(std::string url);

}  // namespace dsec::origin
