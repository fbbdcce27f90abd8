// One file's content in LZ4 pieces of 64 KiB, each decompressed on its own.
//
// A piece that does not become at least a block smaller is stored as it is.
// Equal files give equal pieces.
#pragma once

#include <string>
#include <string_view>

namespace dsec::erofs {

inline constexpr std::size_t kPieceBytes = 64 << 10;

class PieceWriter {
 public:
  // `level`: 0 is LZ4's fast mode, 1 to 12 are LZ4 HC's.
  explicit PieceWriter(int level) : level_(level) {}

  // What is ready is put behind `out`, in whole blocks.
  void add(std::string_view bytes, std::string& out);
  // Ends the file. One byte for each piece: its blocks, 0 = not compressed.
  // Empty when no piece is compressed: the file is flat then.
  std::string finish(std::string& out);

 private:
  void flush(std::string_view piece, std::string& out);

  const int level_;
  std::string piece_;
  std::string packed_;
  std::string blocks_;
  bool any_compressed_ = false;
};

}  // namespace dsec::erofs
