// The content of an image's files: where each file's bytes lie.
//
// Files of equal content share one Content. Equal is: the same SHA-256 of the
// whole file. Small files stay in memory, for they are stored beside their
// inodes; all else goes to the data file while it comes in.
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
#include "erofs/data_file.h"
#include "erofs/digest.h"
#include "erofs/entry.h"
#include "erofs/format.h"
#include "erofs/piece_writer.h"

namespace dsec::erofs {

enum class Profile { kPlain, kLz4 };

// A file as it lies in a data file: what a later image needs to refer to it.
struct StoredFile {
  std::uint64_t bytes = 0;
  std::uint32_t block = 0;
  std::uint32_t blocks = 0;
  std::string pieces;  // PieceWriter::finish(); empty: flat
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
  BlockRun run;                   // kFlat, kCompressed
  std::uint64_t inline_offset = 0;
  std::string pieces;             // kCompressed
  std::vector<SparseRun> sparse;  // kChunked; all between is holes
};

class ContentStore {
 public:
  struct Options {
    Profile profile = Profile::kPlain;
    int lz4_level = 0;
    std::vector<ParentData> parents;
  };
  ContentStore(int data_fd, Options options);

  // `may_inline`: there is room beside the inode.
  void begin(const FileShape& shape, bool may_inline);
  Result<void> write(std::string_view bytes);
  Result<void> skip(std::uint64_t bytes);
  // The number of the content; kNone for the empty file.
  Result<std::uint32_t> finish();

  const Content& content(std::uint32_t id) const { return contents_[id]; }
  std::string_view inline_bytes(const Content& content) const { return std::string_view(inline_).substr(content.inline_offset, content.bytes); }
  const std::vector<ParentData>& parents() const { return options_.parents; }

  // Ends the data file. `used` tells the contents that the image refers to; the
  // blocks of the others are cut out.
  Result<void> close(const std::vector<bool>& used);
  std::size_t count() const { return contents_.size(); }
  const DataFile& data() const { return data_; }
  // The files in this image's own data file. After close().
  StoredFiles stored_files() const;

 private:
  enum class Mode { kEmpty, kInline, kHeld, kStreamed, kSparse };

  Result<void> put(std::string_view bytes);
  Result<std::uint32_t> finish_data();
  Result<std::uint32_t> finish_inline();
  Result<std::uint32_t> finish_sparse();
  std::uint32_t add(Content content);
  std::uint32_t next_block() const { return static_cast<std::uint32_t>(data_.bytes() / kBlockBytes); }
  std::uint64_t chunk_bytes() const { return std::uint64_t{kBlockBytes} << chunk_bits_; }
  Result<void> write_sparse(std::string_view bytes);
  Result<void> skip_sparse(std::uint64_t bytes);
  void end_sparse_run();

  const Options options_;
  DataFile data_;
  PieceWriter pieces_;
  std::vector<Content> contents_;
  std::string inline_;
  std::unordered_map<std::string, std::uint32_t> by_digest_;
  std::unordered_set<std::uint64_t> sizes_;  // of what by_digest_ holds; a new size needs no look

  // The file that is being written.
  FileShape shape_;
  Mode mode_ = Mode::kEmpty;
  std::uint64_t position_ = 0;
  std::uint32_t first_block_ = 0;  // kStreamed
  std::uint8_t chunk_bits_ = 0;    // kSparse
  bool in_run_ = false;            // kSparse: the last run goes on
  std::vector<SparseRun> runs_;
  std::string held_;
  Sha256 hash_;
};

}  // namespace dsec::erofs
