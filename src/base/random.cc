#include "base/random.h"

#include <sys/random.h>

#include <cerrno>

#include "base/error.h"

namespace dsec {

void SystemRandom::fill(std::span<char> out) {
  while (!out.empty()) {
    const ssize_t n = getrandom(out.data(), out.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    DSEC_CHECK(n > 0);
    out = out.subspan(static_cast<std::size_t>(n));
  }
}

}  // namespace dsec
