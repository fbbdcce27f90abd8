#include "protocol/frame.h"

#include <cstring>

#include "base/crc32c.h"

namespace dsec::protocol {
namespace {

constexpr std::string_view kMagic = "DSF1";

void put_u32(char* at, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) at[i] = static_cast<char>(value >> (8 * i));
}

std::uint32_t get_u32(const char* at) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= static_cast<std::uint32_t>(static_cast<unsigned char>(at[i])) << (8 * i);
  return value;
}

bool header_is_valid(const char* at, std::size_t longest_body) {
  return std::memcmp(at, kMagic.data(), kMagic.size()) == 0 && at[5] == 0 && at[6] == 0 && at[7] == 0 &&
         get_u32(at + 8) <= longest_body && get_u32(at + 12) == crc32c({at, 12});
}

}  // namespace

std::string encode_frame(MessageType type, std::string_view body) {
  DSEC_CHECK(body.size() <= (type == MessageType::kExecStart ? kMaxExecStartBody : kMaxFrameBody));
  std::string frame(kFrameHeader, '\0');
  kMagic.copy(frame.data(), kMagic.size());
  frame[4] = static_cast<char>(type);
  put_u32(frame.data() + 8, static_cast<std::uint32_t>(body.size()));
  put_u32(frame.data() + 12, crc32c({frame.data(), 12}));
  frame.append(body);
  return frame;
}

void FrameReader::feed(std::string_view bytes) {
  if (start_ > 0 && (start_ == buffer_.size() || start_ >= kMaxFrameBody)) {
    buffer_.erase(0, start_);
    start_ = 0;
    if (buffer_.empty() && buffer_.capacity() > kMaxFrameBody / 4) buffer_.shrink_to_fit();
  }
  buffer_.append(bytes);
}

std::optional<Frame> FrameReader::next() {
  for (;;) {
    const char* at = buffer_.data() + start_;
    const std::size_t left = buffer_.size() - start_;
    if (left < kFrameHeader) return std::nullopt;
    if (header_is_valid(at, longest_body_)) {
      const std::size_t length = get_u32(at + 8);
      if (left < kFrameHeader + length) return std::nullopt;
      Frame frame{static_cast<MessageType>(at[4]), std::string(at + kFrameHeader, length)};
      start_ += kFrameHeader + length;
      return frame;
    }

    // Not a frame: on to the next place where one may begin.
    const std::string_view rest(at + 1, left - 1);
    const std::size_t found = rest.find(kMagic[0]);
    const std::size_t skip = found == std::string_view::npos ? left : found + 1;
    start_ += skip;
    skipped_ += skip;
  }
}

}  // namespace dsec::protocol
