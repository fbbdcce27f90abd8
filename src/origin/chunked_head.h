// How the objects about the chunks of a data object begin: eight bytes that tell
// which it is, the chunk's size and a number of its own (32 bits each), and the
// data object's size (64 bits), all little-endian.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace dsec::origin {

struct ChunkedHead {
  static constexpr std::size_t kBytes = 24;
  std::uint32_t number = 0;
  std::uint64_t object_bytes = 0;
};

std::string to_bytes(std::string_view magic, const ChunkedHead& head);
// Of what begins `bytes`; kDataFault, which says `what` it should be, for what is
// none, of chunks of another size, or of an object of more than signed offsets can say.
Result<ChunkedHead> parse_head(std::string_view bytes, std::string_view magic, const char* what);

}  // namespace dsec::origin
