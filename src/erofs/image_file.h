// One of an image's files while it is written: bytes appended, never changed.
//
// What comes in is copied once, into large buffers; a second thread writes them
// and hashes them, so that reading an archive, making an image and writing it
// overlap. The disk starts at once: whoever syncs the file in the end waits for
// little. Runs of blocks that turn out to be unused are cut out at the end.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/result.h"
#include "erofs/digest.h"
#include "erofs/format.h"

namespace dsec::erofs {

struct BlockRun {
  std::uint32_t block = 0;
  std::uint32_t blocks = 0;
};

class ImageFile {
 public:
  // An empty file, open for reading and writing, that outlives this object.
  explicit ImageFile(int fd);
  ~ImageFile();
  ImageFile(const ImageFile&) = delete;
  ImageFile& operator=(const ImageFile&) = delete;

  Result<void> append(std::string_view bytes);
  Result<void> append_zeros(std::uint64_t bytes);
  // Zeros to the end of the block.
  Result<void> pad() { return append_zeros((kBlockBytes - bytes_ % kBlockBytes) % kBlockBytes); }
  std::uint64_t bytes() const { return bytes_; }

  // Whether these bytes stand there; what was appended may still be on its way.
  Result<bool> holds(std::uint64_t offset, std::string_view bytes);
  Result<bool> same(std::uint64_t one, std::uint64_t other, std::uint64_t bytes);

  // Ends the writing: the file is whole. Its size is a multiple of blocks.
  Result<void> finish();
  // Keeps these runs, in ascending order, and moves each down to the end of the
  // one before; their blocks are updated. After finish().
  Result<void> keep_only(std::vector<BlockRun>& runs);
  // 64 hex digits. After finish().
  const std::string& digest() const { return digest_; }

 private:
  struct Buffer {
    std::string bytes;
    std::uint64_t offset = 0;
  };

  Result<void> hand_over();
  void write_and_hash();
  Result<void> store(const Buffer& buffer);
  Result<void> read(std::uint64_t offset, std::span<char> into);

  const int fd_;
  std::uint64_t bytes_ = 0;
  Buffer filling_;
  Sha256 hash_;  // the writing thread's until it has ended
  std::string digest_;

  std::mutex mutex_;  // guards all below; not held while writing
  std::condition_variable changed_;
  std::vector<Buffer> full_;  // to be written, oldest first
  std::vector<std::string> spare_;
  std::uint64_t written_ = 0;  // bytes from the start
  bool ending_ = false;
  std::optional<Error> error_;
  std::thread writer_;  // started with the first full buffer
};

}  // namespace dsec::erofs
