// What other nodes are given of an object.
#include "stored/blob.h"

namespace dsec::stored {

std::string Blob::chunks_here() const {
  const std::lock_guard lock(mutex_);
  std::string out((chunks_.size() + 7) / 8, '\0');
  for (std::uint64_t chunk = 0; chunk < chunks_.size() && !poisoned_; ++chunk) {
    const bool here = chunks_[chunk].state == State::kHere || chunks_[chunk].state == State::kClaimed;
    if (here) out[chunk / 8] = static_cast<char>(out[chunk / 8] | 1 << chunk % 8);
  }
  return out;
}

Result<std::string> Blob::copy_of(ChunkRun run) {
  if (run.first >= chunks_.size() || run.count > chunks_.size() - run.first) return Error(ErrorCode::kNotFound, "chunks that the object does not have");
  std::string out;
  for (std::uint64_t chunk = run.first; chunk < run.first + run.count; ++chunk) {
    {
      const std::lock_guard lock(mutex_);
      Chunk& found = chunks_[chunk];
      if (poisoned_ || (found.state != State::kHere && found.state != State::kClaimed)) return Error(ErrorCode::kNotFound, "a chunk is not here");
      ++found.readers;
    }
    const auto bytes = file_.read(start_of(chunk), chunk_bytes(chunk));
    {
      const std::lock_guard lock(mutex_);
      --chunks_[chunk].readers;
    }
    // The disk may have lost what was here, and what was claimed nobody has checked.
    if (!bytes.ok() || !reader_->index().fits(chunk, bytes->view())) return Error(ErrorCode::kNotFound, "a chunk is not as it was");
    out += bytes->view();
  }
  return out;
}

}  // namespace dsec::stored
