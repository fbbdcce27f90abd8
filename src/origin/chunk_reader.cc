#include "origin/chunk_reader.h"

namespace dsec::origin {

namespace {

bool worth_another_try(ErrorCode code) { return code != ErrorCode::kNotFound && code != ErrorCode::kPermissionDenied && code != ErrorCode::kUnauthenticated; }

}  // namespace

ChunkReader::ChunkReader(Origin& origin, ObjectName name, ChunkIndex index, ReadPatience patience)
    : origin_(origin), name_(std::move(name)), index_(std::move(index)), patience_(patience) {}

Result<Buffer> ChunkReader::read(std::uint64_t first, std::uint64_t count, Deadline deadline) {
  if (count == 0 || first >= index_.chunks() || count > index_.chunks() - first) return invalid_argument("chunks that the object does not have");
  Result<Buffer> got = Error(ErrorCode::kDeadlineExceeded, "no time left to read");
  for (int tries = 0; tries < patience_.attempts && !deadline.passed(); ++tries) {
    got = attempt(first, count, Deadline::at(std::min(deadline.when(), Deadline::in(patience_.each).when())));
    if (got.ok() || !worth_another_try(got.error().code())) break;
  }
  return std::move(got).within("read " + name_.path() + " from " + origin_.description());
}

Result<Buffer> ChunkReader::attempt(std::uint64_t first, std::uint64_t count, Deadline deadline) {
  DSEC_ASSIGN(const std::shared_ptr<const Object> from, object(deadline));
  const std::uint64_t start = first * ChunkIndex::kChunkBytes;
  const std::uint64_t end = (first + count - 1) * ChunkIndex::kChunkBytes + index_.size_of(first + count - 1);
  DSEC_ASSIGN(Buffer bytes, from->read(start, end - start, deadline));
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::size_t at = i * ChunkIndex::kChunkBytes;
    if (index_.fits(first + i, bytes.view().substr(at, index_.size_of(first + i)))) continue;
    // What is open may stay wrong after the store was mended.
    const std::lock_guard lock(mutex_);
    if (open_ == from) open_ = nullptr;
    return Error(ErrorCode::kDataFault, "the bytes of chunk " + std::to_string(first + i) + " are not those that were stored");
  }
  return bytes;
}

Result<std::shared_ptr<const Object>> ChunkReader::object(Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (open_) return open_;
  }
  DSEC_ASSIGN(std::shared_ptr<const Object> fresh, origin_.open(name_, deadline));
  if (fresh->size() != index_.object_bytes())
    return Error(ErrorCode::kDataFault, "it has " + std::to_string(fresh->size()) + " bytes instead of " + std::to_string(index_.object_bytes()));
  const std::lock_guard lock(mutex_);
  if (!open_) open_ = fresh;
  return open_;
}

}  // namespace dsec::origin
