// A frame reader fed in odd pieces finds the frames that one whole piece gives,
// and holds no more than a frame and what it was fed.
#include "protocol/frame.h"

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsec::protocol;
  if (size == 0) return 0;
  const std::size_t piece = 1 + data[0] % 61;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<Frame> whole, pieces;
  FrameReader first;
  first.feed(bytes);
  while (auto frame = first.next()) whole.push_back(std::move(*frame));
  FrameReader second;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    second.feed(bytes.substr(at, piece));
    while (auto frame = second.next()) pieces.push_back(std::move(*frame));
  }
  if (whole.size() != pieces.size()) std::abort();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (whole[i].type != pieces[i].type || whole[i].body != pieces[i].body) std::abort();
    if (whole[i].body.size() > kMaxFrameBody) std::abort();
  }
  return 0;
}
