// What an errno says, for people. Unlike std::strerror it is safe on every
// thread, and knows no locale.
#pragma once

#include <string>

namespace dsec {

std::string errno_text(int error_number);

}  // namespace dsec
