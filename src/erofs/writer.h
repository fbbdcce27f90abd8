// The EROFS writer: entries in, two files out.
//
// The metadata file holds the tree, small files and a table that names the data
// file by its SHA-256; the data file holds content in whole blocks. Put behind
// one another they are one image as well. The tree stands in memory until
// finish(); content flows through. Equal entries in equal order make equal bytes.
// Needs no root, no temporary tree and no system call for an entry.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "erofs/content_store.h"
#include "erofs/entry.h"
#include "erofs/tree.h"

namespace dsec::erofs {

struct WriterOptions {
  Overlaps overlaps = Overlaps::kRefuse;
  Profile profile = Profile::kPlain;
  int lz4_level = 0;                // 0: fast, 1 to 12: LZ4 HC
  bool keep_digests = false;        // as_parent() will be asked for
  std::vector<ParentData> parents;  // only those that are used become devices, of which there are 16 at most
};

struct FinishOptions {
  std::int64_t unstated_seconds = 0;  // the time of directories that no entry described
  std::string identity;               // whatever else tells this image from others of equal content
};

struct WrittenImage {
  std::uint64_t metadata_bytes = 0;
  std::uint64_t data_bytes = 0;  // 0: there is no device for it
  std::string data_digest;       // 64 hex digits
  std::uint64_t inodes = 0;
};

class Writer final : public EntrySink {
 public:
  // Two empty files, open for reading and writing, that outlive the writer.
  Writer(int metadata_fd, int data_fd, WriterOptions options);

  Result<void> make_directory(const std::string& path, const EntryMeta& meta) override;
  Result<void> begin_file(const std::string& path, const EntryMeta& meta, const FileShape& shape) override;
  Result<void> write(std::string_view bytes) override { return contents_.write(bytes); }
  Result<void> skip(std::uint64_t bytes) override { return contents_.skip(bytes); }
  Result<void> finish_file() override;
  Result<void> make_symlink(const std::string& path, const std::string& target, const EntryMeta& meta) override;
  Result<void> make_hard_link(const std::string& path, const std::string& target) override { return tree_.make_hard_link(path, target); }
  Result<void> make_fifo(const std::string& path, const EntryMeta& meta) override;
  // A character device 0:0.
  Result<void> make_whiteout(const std::string& path) override;
  Result<void> make_opaque(const std::string& path) override;

  // Removes a file or a whole directory; absent is fine.
  Result<void> remove(const std::string& path) { return tree_.remove(path); }
  // The names in a directory; empty when there is none.
  Result<std::vector<std::string>> names(const std::string& path) { return tree_.names(path); }
  // A directory of this mode and root's unless there is one.
  Result<void> ensure_directory(const std::string& path, mode_t mode) { return tree_.ensure_directory(path, mode); }
  std::uint64_t implied_directories() const override { return tree_.implied_directories(); }

  // For who lays whole layers into the image (layer_merge.h).
  Tree& tree() { return tree_; }
  ContentStore& contents() { return contents_; }

  // Both files are whole, and nothing is synced.
  Result<WrittenImage> finish(const FinishOptions& options);
  // For images that take this one as their parent. After finish(), with keep_digests.
  ParentData as_parent() const;

 private:
  const int metadata_fd_;
  const Overlaps overlaps_;
  Tree tree_;
  ContentStore contents_;
  std::uint32_t file_ = kNone;  // that is being written
};

}  // namespace dsec::erofs
