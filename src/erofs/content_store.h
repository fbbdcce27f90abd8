// The content of an image's files: where each file's bytes lie.
//
// Files of equal content share one Content. Whether two are equal the bytes
// say: a fingerprint finds the file that may be the same, and both are
// compared. Against parents, whose bytes are not at hand, the SHA-256 of the
// whole file decides.
//
// A small file's last part, the tail, stays in memory and is stored beside its
// inode, so that no block is padded for it; see tail_bytes(). All else goes to
// the data file while it comes in.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "erofs/byte_arena.h"
#include "erofs/digest.h"
#include "erofs/entry.h"
#include "erofs/fingerprint.h"
#include "erofs/format.h"
#include "erofs/image_file.h"
#include "erofs/piece_writer.h"

namespace dsec::erofs {

enum class Profile { kPlain, kLz4 };

// A file as it lies in a data file: what a later image needs to refer to it.
struct StoredFile {
  std::uint64_t bytes = 0;
  std::uint32_t block = 0;
  std::uint32_t blocks = 0;
  std::string pieces;  // PieceWriter::finish(); empty: flat
  std::string tail;    // what is not in the data file
  bool operator==(const StoredFile&) const = default;
};
using StoredFiles = std::map<std::string, StoredFile>;  // by the 32 bytes of a file's SHA-256

// The data file of another image, which will be mounted beside this one's.
struct ParentData {
  std::string digest;  // 64 hex digits
  std::uint32_t blocks = 0;
  StoredFiles files;
};

struct SparseRun {
  std::uint32_t chunk = 0;  // the first one, of the file
  BlockRun run;
};

struct Content {
  std::uint64_t bytes = 0;
  Layout layout = Layout::kFlat;
  std::uint8_t chunk_bits = 0;    // kChunked: log2 of a chunk's blocks
  std::uint32_t device = 0;       // 0 is this image's data file, i is parent i - 1
  BlockRun run;                   // all but kChunked
  std::string_view tail;          // kInline
  std::string pieces;             // kCompressed
  std::vector<SparseRun> sparse;  // kChunked; all between is holes
};

// The bytes of a file's tail where `room` bytes are free beside its inode; 0: the
// file is stored in whole blocks. Large files are, so that they can be mapped
// without a page cache (DAX); so is what would save little.
std::uint64_t tail_bytes(std::uint64_t file_bytes, std::uint64_t room);
// Of a file of chunks, so that its index stays small: log2 of a chunk's blocks, at least.
std::uint8_t smallest_chunk_bits(std::uint64_t file_bytes);

class ContentStore {
 public:
  struct Options {
    Profile profile = Profile::kPlain;
    int lz4_level = 0;
    bool keep_digests = false;  // stored_files() will be asked for
    std::vector<ParentData> parents;
  };
  ContentStore(int data_fd, Options options);

  // `room`: bytes that are free beside the inode.
  void begin(const FileShape& shape, std::uint64_t room);
  Result<void> write(std::string_view bytes);
  Result<void> skip(std::uint64_t bytes);
  // The number of the content; kNone for the empty file.
  Result<std::uint32_t> finish();

  // A content that lies in a parent's data, or where append_blocks() has put it, as it
  // is described; its tail is copied. kNone when no more tails are held: it can be
  // written instead.
  std::uint32_t refer(Content content);
  // Whole blocks as they are, at next_block(). What they hold is told by refer().
  Result<void> append_blocks(std::string_view blocks);
  std::uint32_t next_block() const { return static_cast<std::uint32_t>(data_.bytes() / kBlockBytes); }

  const Content& content(std::uint32_t id) const { return contents_[id]; }
  const std::vector<ParentData>& parents() const { return options_.parents; }

  // Ends the data file. `used` tells the contents that the image refers to; the
  // blocks of the others are cut out.
  Result<void> close(const std::vector<bool>& used);
  std::size_t count() const { return contents_.size(); }
  const ImageFile& data() const { return data_; }
  // The files in this image's own data file. After close().
  StoredFiles stored_files() const;

 private:
  enum class Mode { kEmpty, kHeld, kStreamed, kSparse };

  bool knows_digests() const { return knows_digests_; }
  Result<void> stream(std::string_view bytes);
  Result<void> settle_held(std::string_view bytes);
  Result<void> settle_streamed();
  Result<void> settle_sparse();
  // What is equal and known already, or kNone: `stored` are its blocks, still
  // to be appended, or nothing when they were: content.run says where.
  Result<std::uint32_t> find_equal(const Content& content, std::uint64_t fingerprint, std::string_view stored);
  std::uint32_t find_in_parents(const std::string& digest) const;
  void remember(std::uint32_t id, std::uint64_t fingerprint, const std::string& digest);
  std::uint32_t add(Content content);
  std::uint64_t chunk_bytes() const { return std::uint64_t{kBlockBytes} << chunk_bits_; }
  void begin_sparse();
  Result<void> write_sparse(std::string_view bytes);
  Result<void> skip_sparse(std::uint64_t bytes);
  void end_sparse_run();

  const Options options_;
  bool knows_digests_;
  ImageFile data_;
  PieceWriter pieces_;
  ByteArena tails_;
  std::vector<Content> contents_;
  std::unordered_map<std::uint64_t, std::uint32_t> by_fingerprint_;  // this image's own
  std::unordered_map<std::string, std::uint32_t> by_digest_;         // and the parents'; only if knows_digests()
  std::unordered_set<std::uint64_t> sizes_;                          // of what both hold; a new size needs no look

  // The file that is being written.
  FileShape shape_;
  Mode mode_ = Mode::kEmpty;
  std::uint64_t room_ = 0;
  std::uint64_t position_ = 0;
  std::uint32_t settled_ = 0;      // what finish() answers
  std::uint32_t first_block_ = 0;  // kStreamed
  std::uint8_t chunk_bits_ = 0;    // kSparse
  bool in_run_ = false;            // kSparse: the last run goes on
  std::vector<SparseRun> runs_;
  std::string held_;
  std::string packed_;             // compressed blocks on their way
  Fingerprint fingerprint_;        // kStreamed
  std::optional<Sha256> hash_;     // kStreamed, if knows_digests()
};

}  // namespace dsec::erofs
