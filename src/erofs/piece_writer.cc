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

Result<void> PieceWriter::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t part = std::min(bytes.size(), kPieceBytes - piece_.size());
    piece_.append(bytes.substr(0, part));
    bytes.remove_prefix(part);
    if (piece_.size() == kPieceBytes) DSEC_TRY(flush());
  }
  return {};
}

Result<void> PieceWriter::flush() {
  const std::size_t most = (blocks_of(piece_.size()) - 1) * kBlockBytes;
  int packed = 0;
  if (most != 0) {
    packed_.resize(most);
    const int from = static_cast<int>(piece_.size());
    const int room = static_cast<int>(most);
    packed = level_ == 0 ? LZ4_compress_default(piece_.data(), packed_.data(), from, room)
                         : LZ4_compress_HC(piece_.data(), packed_.data(), from, room, level_);
  }
  if (packed > 0) {
    const std::size_t bytes = static_cast<std::size_t>(packed);
    DSEC_TRY(data_.append_zeros(blocks_of(bytes) * kBlockBytes - bytes));
    DSEC_TRY(data_.append(std::string_view(packed_).substr(0, bytes)));
    blocks_.push_back(static_cast<char>(blocks_of(bytes)));
    any_compressed_ = true;
  } else {
    DSEC_TRY(data_.append(piece_));
    DSEC_TRY(data_.pad());
    blocks_.push_back('\0');
  }
  piece_.clear();
  return {};
}

Result<std::string> PieceWriter::finish() {
  if (!piece_.empty()) DSEC_TRY(flush());
  if (!any_compressed_) blocks_.clear();
  any_compressed_ = false;
  return std::exchange(blocks_, {});
}

}  // namespace dsec::erofs
