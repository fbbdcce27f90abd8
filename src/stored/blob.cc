#include "stored/blob.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"

namespace dsec::stored {

using origin::ChunkIndex;

namespace {

void add_chunk(std::vector<ChunkRun>& runs, std::uint64_t chunk) {
  if (!runs.empty() && runs.back().first + runs.back().count == chunk && runs.back().count < Blob::kMaxRun) ++runs.back().count;
  else runs.push_back({chunk, 1});
}

}  // namespace

BlobCounts& BlobCounts::operator+=(const BlobCounts& other) {
  for (auto BlobCounts::*field : {&BlobCounts::hit_bytes, &BlobCounts::fetched_bytes, &BlobCounts::failed_chunks, &BlobCounts::touched_bytes,
                                  &BlobCounts::demand_misses, &BlobCounts::prefetched_bytes, &BlobCounts::useful_bytes})
    this->*field += other.*field;
  return *this;
}

Blob::Blob(std::string hex, std::unique_ptr<origin::ChunkReader> reader, CacheFile file, bool complete, Duration trace_window)
    : hex_(std::move(hex)),
      complete_(complete),
      file_(std::move(file)),
      reader_(std::move(reader)),
      chunks_(reader_->index().chunks()),
      touches_(file_.bytes(), trace_window) {
  const auto stored = file_.stored_chunks();
  for (std::uint64_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    if (!complete_ && !(stored.ok() && (*stored)[chunk])) continue;
    chunks_[chunk] = {.state = State::kClaimed, .claimed = true};
    touches_.keep_no_order();  // these were not its first reads
  }
}

std::vector<ChunkRun> Blob::read(std::uint64_t offset, std::size_t length, PendingRead::Answer answer) {
  std::vector<ChunkRun> runs;
  if (offset >= bytes()) return answer(std::string_view()), runs;
  length = std::min<std::uint64_t>(length, bytes() - offset);
  if (length == 0) return answer(std::string_view()), runs;
  const std::uint64_t first = offset / ChunkIndex::kChunkBytes;
  const std::uint64_t last = (offset + length - 1) / ChunkIndex::kChunkBytes;
  const auto pending = std::make_shared<PendingRead>(offset, length, std::move(answer));
  std::vector<std::uint64_t> here;
  {
    const std::lock_guard lock(mutex_);
    touch(offset, length);
    if (poisoned_) pending->fail(Error(ErrorCode::kDataFault, hex_ + " is not what its name says"));
    for (std::uint64_t chunk = first; chunk <= last && !poisoned_; ++chunk) {
      if (chunks_[chunk].state != State::kHere) {
        want(chunk, pending, runs);
        continue;
      }
      ++chunks_[chunk].readers;
      chunks_[chunk].used_again = true;
      here.push_back(chunk);
    }
  }
  for (const std::uint64_t chunk : here) {
    const std::uint64_t from = std::max(offset, start_of(chunk));
    const std::uint64_t to = std::min(offset + length, start_of(chunk) + chunk_bytes(chunk));
    const auto bytes = file_.read(from, to - from);
    if (bytes.ok()) pending->fill(from, bytes->view());
    const std::lock_guard lock(mutex_);
    --chunks_[chunk].readers;
    if (bytes.ok()) {
      counts_.hit_bytes += to - from;
    } else {
      // A bad place on this node's disk: what is there is as good as not there.
      if (chunks_[chunk].state == State::kHere) --here_, chunks_[chunk].state = State::kHole;
      want(chunk, pending, runs);
    }
  }
  pending->part_done();
  return runs;
}

void Blob::want(std::uint64_t chunk, const std::shared_ptr<PendingRead>& pending, std::vector<ChunkRun>& runs) {
  pending->await_part();
  waiting_[chunk].push_back(pending);
  if (chunks_[chunk].state == State::kFetching) return;
  if (!chunks_[chunk].claimed) ++counts_.demand_misses;
  chunks_[chunk].state = State::kFetching;
  add_chunk(runs, chunk);
}

void Blob::touch(std::uint64_t offset, std::size_t length) {
  if (touches_.touch(offset, length, std::chrono::steady_clock::now())) first_read_ = true;
  for (std::uint64_t chunk = offset / ChunkIndex::kChunkBytes; start_of(chunk) < offset + length; ++chunk)
    if (std::exchange(chunks_[chunk].unread, false)) counts_.useful_bytes += chunk_bytes(chunk);
}

std::vector<ChunkRun> Blob::claim(ChunkRun run) {
  std::vector<ChunkRun> runs;
  const std::lock_guard lock(mutex_);
  if (poisoned_ || complete_) return runs;
  for (std::uint64_t chunk = run.first; chunk < run.first + run.count; ++chunk) {
    if (chunks_[chunk].state != State::kHole) continue;
    chunks_[chunk].state = State::kFetching;
    chunks_[chunk].unread = true;
    add_chunk(runs, chunk);
  }
  return runs;
}

Blob::Fetched Blob::fetch(ChunkRun run, Deadline deadline, FetchFor whom) {
  Fetched out;
  ChunkRun missing;
  const auto fetch_missing = [&] {
    if (missing.count > 0) fetch_run(missing, deadline, whom, out);
    missing = {};
  };
  for (std::uint64_t chunk = run.first; chunk < run.first + run.count; ++chunk) {
    if (check_claimed(chunk)) {
      fetch_missing();
    } else if (missing.count == 0) {
      missing = {chunk, 1};
    } else {
      ++missing.count;
    }
  }
  fetch_missing();
  const std::lock_guard lock(mutex_);
  out.whole = !complete_ && here_ == chunks_.size();
  return out;
}

bool Blob::check_claimed(std::uint64_t chunk) {
  {
    const std::lock_guard lock(mutex_);
    if (!chunks_[chunk].claimed) return false;
  }
  const auto bytes = file_.read(start_of(chunk), chunk_bytes(chunk));
  const bool fits = bytes.ok() && reader_->index().fits(chunk, bytes->view());
  if (fits) settle(chunk, bytes->view(), true);
  const std::lock_guard lock(mutex_);
  chunks_[chunk].claimed = false;
  if (fits) counts_.hit_bytes += bytes->size();
  return fits;
}

void Blob::fetch_run(ChunkRun run, Deadline deadline, FetchFor whom, Fetched& out) {
  const auto bytes = reader_->read(run.first, run.count, deadline);
  if (!bytes.ok()) {
    for (std::uint64_t i = 0; i < run.count; ++i) {
      if (whom == FetchFor::kReader) fail(run.first + i, bytes.error());
      else give_up(run.first + i, out);
    }
    return;
  }
  const auto part = [&](std::uint64_t chunk) { return bytes->view().substr(start_of(chunk) - start_of(run.first), chunk_bytes(chunk)); };
  for (std::uint64_t i = 0; i < run.count; ++i) hand_out(run.first + i, part(run.first + i));
  bool kept = false;
  if (!complete_) {
    const auto written = file_.write(start_of(run.first), bytes->data(), bytes->size());
    kept = written.ok();
    if (!kept) log_warning("a chunk is not kept on this node", {{"data", hex_}, {"why", written.error().message()}});
  }
  for (std::uint64_t chunk = run.first; chunk < run.first + run.count; ++chunk) {
    settle(chunk, part(chunk), kept);
    if (kept) out.kept.push_back(chunk);
  }
  const std::lock_guard lock(mutex_);
  counts_.fetched_bytes += bytes->size();
  if (whom == FetchFor::kLater) counts_.prefetched_bytes += bytes->size();
}

Blob::Waiting Blob::take_waiting(std::uint64_t chunk) {
  const auto found = waiting_.find(chunk);
  if (found == waiting_.end()) return {};
  Waiting taken = std::move(found->second);
  waiting_.erase(found);
  return taken;
}

void Blob::hand_out(std::uint64_t chunk, std::string_view bytes) {
  Waiting taken;
  {
    const std::lock_guard lock(mutex_);
    taken = take_waiting(chunk);
  }
  for (const auto& pending : taken) pending->fill(start_of(chunk), bytes), pending->part_done();
}

void Blob::settle(std::uint64_t chunk, std::string_view bytes, bool kept) {
  Waiting taken;
  {
    const std::lock_guard lock(mutex_);
    chunks_[chunk].state = kept ? State::kHere : State::kHole;
    if (kept) ++here_;
    else chunks_[chunk].unread = false;
    taken = take_waiting(chunk);
  }
  for (const auto& pending : taken) pending->fill(start_of(chunk), bytes), pending->part_done();
}

void Blob::fail(std::uint64_t chunk, const Error& error) {
  Waiting taken;
  {
    const std::lock_guard lock(mutex_);
    chunks_[chunk].state = State::kHole;
    ++counts_.failed_chunks;
    taken = take_waiting(chunk);
  }
  for (const auto& pending : taken) pending->fail(error), pending->part_done();
}

void Blob::give_up(std::uint64_t chunk, Fetched& out) {
  const std::lock_guard lock(mutex_);
  if (waiting_.contains(chunk)) {
    counts_.useful_bytes -= chunk_bytes(chunk);  // counted when the reader came
    ++counts_.demand_misses;
    add_chunk(out.still_wanted, chunk);
    return;
  }
  chunks_[chunk].state = State::kHole;
  chunks_[chunk].unread = false;
}

std::vector<std::uint64_t> Blob::stored_chunks() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> out;
  for (std::uint64_t chunk = 0; chunk < chunks_.size(); ++chunk)
    if (chunks_[chunk].claimed) out.push_back(chunk);
  return out;
}

bool Blob::used_again(std::uint64_t chunk) {
  const std::lock_guard lock(mutex_);
  return std::exchange(chunks_[chunk].used_again, false);
}

bool Blob::unread(std::uint64_t chunk) const {
  const std::lock_guard lock(mutex_);
  return chunks_[chunk].unread;
}

bool Blob::evict(std::uint64_t chunk) {
  const std::lock_guard lock(mutex_);
  Chunk& found = chunks_[chunk];
  if (complete_ || settled_ || found.readers > 0 || found.state == State::kFetching) return false;
  if (found.state == State::kHole) return true;
  // Under the lock, which is held for a moment: nobody may read or fill it meanwhile.
  if (const auto dropped = file_.drop(start_of(chunk), chunk_bytes(chunk)); !dropped.ok()) return false;
  if (found.state == State::kHere) --here_;
  found = {};
  return true;
}

Result<void> Blob::name_whole(const std::string& path) {
  {
    const std::lock_guard lock(mutex_);
    if (settled_ || here_ != chunks_.size()) return Error(ErrorCode::kConflict, hex_ + " is not whole, or has its name");
    settled_ = true;
  }
  Result<void> named = file_.sync();
  if (named.ok()) {
    const auto digest = file_.digest();
    if (!digest.ok()) named = digest.error();
    else if (*digest != hex_) named = Error(ErrorCode::kDataFault, hex_ + ": its chunks fit the index and the whole does not fit its name: the index is of something else");
    else named = file_.link_as(path);
  }
  const bool there = !named.ok() && named.error().error_number() == EEXIST;
  if (named.ok() || there) return {};
  const std::lock_guard lock(mutex_);
  settled_ = false;
  poisoned_ = named.error().code() == ErrorCode::kDataFault;
  return named;
}

BlobCounts Blob::counts() const {
  const std::lock_guard lock(mutex_);
  BlobCounts out = counts_;
  out.touched_bytes = touches_.touched_bytes();
  return out;
}

bool Blob::take_first_read() {
  const std::lock_guard lock(mutex_);
  return std::exchange(first_read_, false);
}

std::optional<origin::AccessTrace> Blob::take_trace(Instant now) {
  const std::lock_guard lock(mutex_);
  return touches_.take_trace(now);
}

void Blob::keep_no_order() {
  const std::lock_guard lock(mutex_);
  touches_.keep_no_order();
}

}  // namespace dsec::stored
