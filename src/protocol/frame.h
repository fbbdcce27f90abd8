// Frames: the unit on every byte stream between edge and agent.
//
//   offset 0  u32  magic "DSF1" (little-endian 0x31465344)
//          4  u8   type (MessageType)
//          5  u8   flags, 0
//          6  u16  reserved, 0
//          8  u32  length of the body, at most 64 KiB; of kExecStart 1408 KiB
//         12  u32  CRC-32C of bytes 0 to 11
//         16       body
//
// A reader that meets anything else skips to the next valid header, counts what
// it skipped, and goes on: a serial line may start in the middle of a frame.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "protocol/agent_messages.h"

namespace dsec::protocol {

inline constexpr std::size_t kFrameHeader = 16;

struct Frame {
  MessageType type = MessageType::kPing;
  std::string body;
};

// body must be at most kMaxFrameBody, of kExecStart kMaxExecStartBody.
std::string encode_frame(MessageType type, std::string_view body);

class FrameReader {
 public:
  // A header that announces a longer body is no header.
  explicit FrameReader(std::size_t longest_body = kMaxFrameBody) : longest_body_(longest_body) {}
  // Adds what was read from the stream.
  void feed(std::string_view bytes);
  // The next whole frame, if there is one. Holds at most one frame plus what was fed.
  std::optional<Frame> next();
  std::uint64_t skipped_bytes() const { return skipped_; }

 private:
  const std::size_t longest_body_;
  std::string buffer_;
  std::size_t start_ = 0;
  std::uint64_t skipped_ = 0;
};

}  // namespace dsec::protocol
