// Files of certificates that operators name.
#pragma once

#include <string>

#include "base/result.h"

namespace dsec::net {

// What stands in a PEM file of certificates, of at most 64 KiB. kInvalidArgument
// when it holds none, or one that cannot be read.
Result<std::string> read_authorities(const std::string& path);

}  // namespace dsec::net
