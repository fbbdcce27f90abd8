// CRC-32C (Castagnoli), as in iSCSI and ext4.
#pragma once

#include <cstdint>
#include <string_view>

namespace dsec {

// `seed` is the checksum of what stood before: crc32c(b, crc32c(a)) == crc32c(a + b).
std::uint32_t crc32c(std::string_view bytes, std::uint32_t seed = 0);

}  // namespace dsec
