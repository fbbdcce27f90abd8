#include "origin/packed_object.h"

#include <fcntl.h>
#include <stdlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "erofs/digest.h"
#include "origin/publish_rules.h"
#include "sys/file.h"

namespace dsec::origin {

namespace {

constexpr std::uint64_t kChunk = ChunkIndex::kChunkBytes;
constexpr std::size_t kFirstRead = 64 << 10;  // the tables of most objects

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

Result<sys::Fd> unnamed_file() {
  const char* const folder = ::getenv("TMPDIR");
  return sys::open_at(AT_FDCWD, folder == nullptr ? "/var/tmp" : folder, O_RDWR | O_TMPFILE, 0600).within("make room for compressed data");
}

// The frame of one chunk: the chunk itself when zstd makes it no smaller.
std::string_view frame_of(ZSTD_CCtx* context, std::string_view chunk, int level, std::vector<char>& room) {
  const std::size_t length = ZSTD_compressCCtx(context, room.data(), room.size(), chunk.data(), chunk.size(), level);
  return ZSTD_isError(length) || length >= chunk.size() ? chunk : std::string_view(room.data(), length);
}

Result<void> unpack(ZSTD_DCtx* context, std::string_view frame, char* chunk, std::size_t size) {
  if (frame.size() == size) {
    std::memcpy(chunk, frame.data(), size);
    return {};
  }
  const std::size_t got = ZSTD_decompressDCtx(context, chunk, size, frame.data(), frame.size());
  if (ZSTD_isError(got) || got != size) return Error(ErrorCode::kDataFault, "compressed data: a frame is not one of its chunk");
  return {};
}

class PackedObject final : public Object {
 public:
  PackedObject(std::unique_ptr<Object> packed, PackedTable table) : packed_(std::move(packed)), table_(std::move(table)) {}

  std::uint64_t size() const override { return table_.object_bytes(); }

  Result<Buffer> read(std::uint64_t offset, std::size_t length, Deadline deadline) const override {
    DSEC_TRY(check_range(size(), offset, length));
    if (length == 0) return Buffer(0);
    const std::uint64_t first = offset / kChunk;
    const std::uint64_t last = (offset + length - 1) / kChunk;
    const std::uint64_t start = table_.start_of(first);
    DSEC_ASSIGN(const Buffer frames, packed_->read(start, table_.start_of(last + 1) - start, deadline));
    const std::unique_ptr<ZSTD_DCtx, FreeContext> context(ZSTD_createDCtx());
    DSEC_CHECK(context != nullptr);  // out of memory
    Buffer out((last - first) * kChunk + table_.size_of(last));
    for (std::uint64_t chunk = first; chunk <= last; ++chunk)
      DSEC_TRY(unpack(context.get(), frames.view().substr(table_.start_of(chunk) - start, table_.length_of(chunk)), out.data() + (chunk - first) * kChunk,
                      table_.size_of(chunk)));
    out.narrow(offset - first * kChunk, length);
    return out;
  }

 private:
  const std::unique_ptr<Object> packed_;
  const PackedTable table_;
};

}  // namespace

Result<Content> pack(const Content& content, Deadline deadline, int level) {
  DSEC_ASSIGN(const sys::Fd file, unnamed_file());
  const std::unique_ptr<ZSTD_CCtx, FreeContext> context(ZSTD_createCCtx());
  DSEC_CHECK(context != nullptr);  // out of memory
  std::vector<char> chunk(kChunk), room(ZSTD_compressBound(kChunk));
  std::vector<std::uint32_t> lengths;
  erofs::Sha256 whole;
  if (::lseek(file.get(), static_cast<off_t>(PackedTable::bytes_for(content.size())), SEEK_SET) < 0) return errno_error("write compressed data", errno);
  for (std::uint64_t at = 0; at < content.size(); at += kChunk) {
    if (deadline.passed()) return Error(ErrorCode::kDeadlineExceeded, "compressing took too long");
    const std::string_view bytes(chunk.data(), std::min(kChunk, content.size() - at));
    DSEC_TRY(content.read(at, chunk.data(), bytes.size()));
    whole.update(bytes);
    const std::string_view frame = frame_of(context.get(), bytes, level, room);
    DSEC_TRY(sys::write_all(file.get(), frame));
    lengths.push_back(static_cast<std::uint32_t>(frame.size()));
  }
  if (whole.hex() != content.hex()) return Error(ErrorCode::kDataFault, "the data is not what its digest says");
  if (::lseek(file.get(), 0, SEEK_SET) < 0) return errno_error("write compressed data", errno);
  DSEC_TRY(sys::write_all(file.get(), PackedTable(content.size(), lengths).bytes()));
  return Content::of_file(file.get());
}

Result<std::unique_ptr<Object>> open_packed(std::unique_ptr<Object> packed, Deadline deadline) {
  const std::uint64_t packed_bytes = packed->size();
  DSEC_ASSIGN(const Buffer first, packed->read(0, std::min<std::uint64_t>(kFirstRead, packed_bytes), deadline));
  DSEC_ASSIGN(const std::uint64_t length, PackedTable::table_bytes(first.view(), packed_bytes));
  std::string bytes(first.view().substr(0, length));
  if (bytes.size() < length) {
    DSEC_ASSIGN(const Buffer rest, packed->read(bytes.size(), length - bytes.size(), deadline));
    bytes += rest.view();
  }
  DSEC_ASSIGN(PackedTable table, PackedTable::parse(bytes, packed_bytes));
  return std::unique_ptr<Object>(std::make_unique<PackedObject>(std::move(packed), std::move(table)));
}

}  // namespace dsec::origin
