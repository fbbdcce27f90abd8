#include "base/errno_text.h"

#include <cstring>

namespace dsec {

std::string errno_text(int error_number) {
  const char* text = ::strerrordesc_np(error_number);
  return text ? text : "unknown error " + std::to_string(error_number);
}

}  // namespace dsec
