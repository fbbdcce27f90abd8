// Names from foreign archives, before anything is done with them.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace dsec::image {

// The relative path of an entry: no "." or empty components, no slash at either
// end; "" is the root itself. Refuses absolute paths, "..", and what a
// filesystem cannot hold or a tool would stumble over (components past 255
// bytes, paths past 3,500, more than 200 levels).
Result<std::string> clean_path(std::string_view raw);

}  // namespace dsec::image
