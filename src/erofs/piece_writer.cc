#include "erofs/piece_writer.h"

#include <lz4.h>
#include <lz4hc.h>

#include <algorithm>
#include <utility>

#include "erofs/format.h"

namespace dsec::erofs {

namespace {

constexpr std::size_t blocks_of(std::size_t bytes) { return (bytes + kBlockBytes - 1) / kBlockBytes; }

}  // namespace

void PieceWriter::add(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    if (piece_.empty() && bytes.size() >= kPieceBytes) {  // no need to gather it
      flush(bytes.substr(0, kPieceBytes), out);
      bytes.remove_prefix(kPieceBytes);
      continue;
    }
    const std::size_t part = std::min(bytes.size(), kPieceBytes - piece_.size());
    piece_.append(bytes.substr(0, part));
    bytes.remove_prefix(part);
    if (piece_.size() == kPieceBytes) {
      flush(piece_, out);
      piece_.clear();
    }
  }
}

void PieceWriter::flush(std::string_view piece, std::string& out) {
  const std::size_t most = (blocks_of(piece.size()) - 1) * kBlockBytes;
  int packed = 0;
  if (most != 0) {
    packed_.resize(most);
    const int from = static_cast<int>(piece.size());
    const int room = static_cast<int>(most);
    const char* const bytes = piece.data();
    packed = level_ == 0 ? LZ4_compress_default(bytes, packed_.data(), from, room) : LZ4_compress_HC(bytes, packed_.data(), from, room, level_);
  }
  if (packed > 0) {
    const auto bytes = static_cast<std::size_t>(packed);
    out.append(blocks_of(bytes) * kBlockBytes - bytes, '\0');
    out.append(packed_, 0, bytes);
    blocks_.push_back(static_cast<char>(blocks_of(bytes)));
    any_compressed_ = true;
  } else {
    out.append(piece);
    out.append(blocks_of(piece.size()) * kBlockBytes - piece.size(), '\0');
    blocks_.push_back('\0');
  }
}

std::string PieceWriter::finish(std::string& out) {
  if (!piece_.empty()) flush(piece_, out);
  piece_.clear();
  if (!any_compressed_) blocks_.clear();
  any_compressed_ = false;
  return std::exchange(blocks_, {});
}

}  // namespace dsec::erofs
