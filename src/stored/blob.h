// One data object as the kernel reads it: which chunks are here, which are on
// their way, and who waits for them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "origin/chunk_reader.h"
#include "stored/cache_file.h"
#include "stored/first_touches.h"
#include "stored/pending_read.h"

namespace dsec::stored {

struct ChunkRun {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

// What was done for the object since this process serves it.
struct BlobCounts {
  std::uint64_t hit_bytes = 0;      // read from what was here
  std::uint64_t fetched_bytes = 0;  // from the origin
  std::uint64_t failed_chunks = 0;
  std::uint64_t touched_bytes = 0;     // in pages of 4 KiB, each counted once
  std::uint64_t demand_misses = 0;     // chunks that a reader had to wait for and that nobody was fetching
  std::uint64_t prefetched_bytes = 0;  // of the fetched ones
  std::uint64_t useful_bytes = 0;      // of the prefetched ones: somebody read of the chunk

  BlobCounts& operator+=(const BlobCounts& other);
};

enum class FetchFor : std::uint8_t { kReader, kLater };

// Safe on any thread. Bytes that do not fit the index are never handed out and
// never kept. A chunk is fetched once, however many wait for it.
class Blob {
 public:
  // Largest run that is fetched by one read of the origin.
  static constexpr std::uint64_t kMaxRun = 16;

  // The order of first reads is kept for `trace_window`, when nothing is here yet.
  Blob(std::string hex, std::unique_ptr<origin::ChunkReader> reader, CacheFile file, bool complete, Duration trace_window = {});

  const std::string& hex() const { return hex_; }
  std::uint64_t bytes() const { return file_.bytes(); }
  // Reads the whole of the range; the bytes that are here are taken at once.
  // Answers the runs that the caller has to have fetched: until then some wait.
  std::vector<ChunkRun> read(std::uint64_t offset, std::size_t length, PendingRead::Answer answer);
  // For later: the same of those of the chunks that nobody has, and that are on nobody's way.
  std::vector<ChunkRun> claim(ChunkRun run);

  struct Fetched {
    std::vector<std::uint64_t> kept;  // chunks that this file has now and had not
    bool whole = false;               // with these, all of them
    // Could not be had for later, and a reader has come for them meanwhile: the
    // caller has to have them fetched for that one.
    std::vector<ChunkRun> still_wanted;
  };
  // Blocks for the origin, for as long as its reader is patient.
  Fetched fetch(ChunkRun run, Deadline deadline, FetchFor whom = FetchFor::kReader);

  // By chunk: what an earlier process has left here.
  std::vector<std::uint64_t> stored_chunks() const;
  std::size_t chunk_bytes(std::uint64_t chunk) const { return reader_->index().size_of(chunk); }
  // Whether it was read again since the last call: it deserves to stay a while.
  bool used_again(std::uint64_t chunk);
  // Whether it came for later and nobody has read of it.
  bool unread(std::uint64_t chunk) const;
  // False while somebody reads it.
  bool evict(std::uint64_t chunk);

  // For other nodes. One bit a chunk, the lowest of the first byte for the first:
  // what is here, checked or not.
  std::string chunks_here() const;
  // Chunks that are here, as the index says; kNotFound when one is not. No use of
  // them in the cache's eyes.
  Result<std::string> copy_of(ChunkRun run);

  // When all chunks are here, each as the index says: compares the digest of all
  // with the object's name, and gives the file the name `path` when it fits; from
  // then on nothing of it is evicted. kDataFault when it does not fit: from then
  // on every read fails. kConflict when chunks are missing again.
  Result<void> name_whole(const std::string& path);
  BlobCounts counts() const;
  // True once: after the first read.
  bool take_first_read();
  // first_touches.h
  std::optional<origin::AccessTrace> take_trace(Instant now);
  void keep_no_order();

 private:
  enum class State : std::uint8_t { kHole, kClaimed, kFetching, kHere };
  struct Chunk {
    State state = State::kHole;
    bool claimed = false;  // an earlier process has left it, nobody has checked it
    bool used_again = false;
    bool unread = false;  // came for later, or is about to
    std::uint16_t readers = 0;
  };
  using Waiting = std::vector<std::shared_ptr<PendingRead>>;

  // With mutex_ held.
  void touch(std::uint64_t offset, std::size_t length);
  void want(std::uint64_t chunk, const std::shared_ptr<PendingRead>& pending, std::vector<ChunkRun>& runs);
  Waiting take_waiting(std::uint64_t chunk);

  bool check_claimed(std::uint64_t chunk);
  void fetch_run(ChunkRun run, Deadline deadline, FetchFor whom, Fetched& out);
  // To those who wait now; the chunk stays on its way.
  void hand_out(std::uint64_t chunk, std::string_view bytes);
  void settle(std::uint64_t chunk, std::string_view bytes, bool kept);
  void fail(std::uint64_t chunk, const Error& error);
  // What came for later and did not come.
  void give_up(std::uint64_t chunk, Fetched& out);
  std::uint64_t start_of(std::uint64_t chunk) const { return chunk * origin::ChunkIndex::kChunkBytes; }

  const std::string hex_;
  const bool complete_;  // the file is whole and not ours to change
  const CacheFile file_;
  const std::unique_ptr<origin::ChunkReader> reader_;
  mutable std::mutex mutex_;  // guards what follows; held over no read and no fetch
  std::vector<Chunk> chunks_;
  std::uint64_t here_ = 0;
  std::unordered_map<std::uint64_t, Waiting> waiting_;
  bool settled_ = false;   // whole, or about to be: nothing is evicted
  bool poisoned_ = false;  // the index is of something else
  BlobCounts counts_;
  FirstTouches touches_;
  bool first_read_ = false;
};

}  // namespace dsec::stored
