#include "origin/buffer.h"

#include "base/error.h"

namespace dsec::origin {

std::unique_ptr<char, Buffer::Free> Buffer::allocate(std::size_t size) {
  const std::size_t pages = std::max<std::size_t>(1, (size + kAlignment - 1) / kAlignment);
  std::unique_ptr<char, Free> memory(static_cast<char*>(std::aligned_alloc(kAlignment, pages * kAlignment)));
  DSEC_CHECK(memory != nullptr);
  return memory;
}

}  // namespace dsec::origin
