#pragma once

#include <string>
#include <string_view>

namespace dsec::model {

// The 32 bytes of the digest. Any thread.
std::string sha256(std::string_view bytes);

}  // namespace dsec::model
