// File capabilities for people.
#pragma once

#include <string>
#include <string_view>

namespace dsec::image {

// Of a value of security.capability that the checker has taken, as getcap says it:
// "cap_net_admin,cap_net_raw=ep". "" of an empty one; "=" grants nothing.
std::string capability_text(std::string_view value);

}  // namespace dsec::image
