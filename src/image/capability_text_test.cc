#include "image/capability_text.h"

#include <gtest/gtest.h>

#include <cstring>

namespace dsec::image {
namespace {

std::string value(std::uint32_t head, std::uint64_t permitted, std::uint64_t inheritable) {
  const std::uint32_t words[5] = {head, static_cast<std::uint32_t>(permitted), static_cast<std::uint32_t>(inheritable), static_cast<std::uint32_t>(permitted >> 32),
                                  static_cast<std::uint32_t>(inheritable >> 32)};
  return std::string(reinterpret_cast<const char*>(words), sizeof words);
}

TEST(CapabilityTextTest, SaysWhatGetcapSays) {
  EXPECT_EQ(capability_text(""), "");
  EXPECT_EQ(capability_text(value(0x02000000, 0, 0)), "=");
  EXPECT_EQ(capability_text(value(0x02000001, 1ULL << 13, 0)), "cap_net_raw=ep");
  EXPECT_EQ(capability_text(value(0x02000000, 1ULL << 13, 1)), "cap_net_raw=p cap_chown=i");
  EXPECT_EQ(capability_text(value(0x02000001, 1ULL << 40 | 1ULL << 50, 1ULL << 40)), "cap_50=ep cap_checkpoint_restore=eip");
  EXPECT_EQ(capability_text("abc"), "=") << "cut off";
}

}  // namespace
}  // namespace dsec::image
