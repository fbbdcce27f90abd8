#include "image/object_file.h"

#include <algorithm>

#include "origin/chunk_reader.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

constexpr std::uint64_t kPart = 4 << 20;
constexpr std::uint64_t kPartChunks = kPart / origin::ChunkIndex::kChunkBytes;

Result<sys::Fd> new_file(const std::string& path) { return sys::open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600); }

}  // namespace

Result<void> fetch_object(origin::Origin& origin, const origin::ObjectName& name, std::uint64_t bytes, const std::string& path, Deadline deadline) {
  const std::string doing = "read " + name.path();
  DSEC_ASSIGN(const std::unique_ptr<origin::Object> object, origin.open(name, deadline).within(doing));
  if (object->size() != bytes) return Error(ErrorCode::kDataFault, doing + ": it has " + std::to_string(object->size()) + " bytes instead of " + std::to_string(bytes));
  DSEC_ASSIGN(const sys::Fd file, new_file(path));
  for (std::uint64_t at = 0; at < bytes; at += kPart) {
    DSEC_ASSIGN(const origin::Buffer part, object->read(at, std::min(kPart, bytes - at), deadline).within(doing));
    DSEC_TRY(sys::write_all(file.get(), part.view()));
  }
  return {};
}

Result<void> fetch_chunks(origin::Origin& origin, const origin::ObjectName& name, origin::ChunkIndex index, const std::string& path, Deadline deadline) {
  origin::ChunkReader reader(origin, name, std::move(index));
  const std::uint64_t chunks = reader.index().chunks();
  DSEC_ASSIGN(const sys::Fd file, new_file(path));
  for (std::uint64_t first = 0; first < chunks; first += kPartChunks) {
    DSEC_ASSIGN(const origin::Buffer part, reader.read(first, std::min(kPartChunks, chunks - first), deadline));
    DSEC_TRY(sys::write_all(file.get(), part.view()));
  }
  return {};
}

}  // namespace dsec::image
