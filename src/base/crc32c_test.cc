#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace dsec {
namespace {

// The check value of the polynomial's catalogue entry.
TEST(Crc32cTest, MatchesThePublishedCheckValue) { EXPECT_EQ(crc32c("123456789"), 0xE3069283u); }

TEST(Crc32cTest, GoesOnFromASeed) {
  const std::string text = "a text that is longer than eight bytes";

  for (std::size_t cut = 0; cut <= text.size(); ++cut)
    EXPECT_EQ(crc32c(text.substr(cut), crc32c(text.substr(0, cut))), crc32c(text));
}

}  // namespace
}  // namespace dsec
