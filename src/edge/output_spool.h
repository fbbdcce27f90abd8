// The spool of a sandbox: what its commands printed and memory does not hold.
//
// One append-only file, made at the first chunk. A chunk is a header of 48 bytes
// and the bytes of one stream of one operation, which belong at an absolute
// offset of that stream:
//
//   offset 0  u32  magic "DSPO"
//          4  u32  CRC-32C of bytes 8 to 47
//          8       operation id, 16 bytes
//         24  u8   stream (1 stdout, 2 stderr); 3 bytes 0
//         28  u32  length
//         32  u64  offset in the stream
//         40  u64  0
//
// A chunk is written before the agent is told that its bytes are stored.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sys/fd.h"

namespace dsec::edge {

inline constexpr std::size_t kOpIdBytes = 16;

class OutputSpool {
 public:
  struct Chunk {
    std::uint64_t stream_offset = 0;
    std::uint64_t file_offset = 0;  // of the bytes, behind the header
    std::uint32_t length = 0;
  };

  // `directory` is made with the file. `limit_bytes` bounds the file.
  OutputSpool(std::string directory, std::uint64_t limit_bytes);

  // kExhausted past the limit or when the disk is full; the file ends behind the last whole chunk.
  Result<Chunk> append(std::string_view op_id, std::uint8_t stream, std::uint64_t stream_offset, std::string_view bytes);
  // Any thread.
  Result<std::string> read(const Chunk& chunk, std::uint64_t stream_offset, std::size_t most) const;
  // After a restart: every whole chunk; a torn end is cut off.
  using Visitor = std::function<void(std::string_view op_id, std::uint8_t stream, Chunk chunk)>;
  Result<void> recover(const Visitor& visit);
  std::uint64_t bytes() const { return size_; }
  // Closes and removes the file and its directory. Any thread, once nobody reads.
  void remove();

 private:
  const std::string directory_;
  const std::uint64_t limit_bytes_;
  sys::Fd file_;
  std::uint64_t size_ = 0;
};

}  // namespace dsec::edge
