// What a source of entries says about each of them, and where it says it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace dsec::erofs {

using Attributes = std::vector<std::pair<std::string, std::string>>;  // by name, each once

struct EntryMeta {
  mode_t mode = 0755;  // permission bits, set-id bits and the sticky bit
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::int64_t mtime_seconds = 0;
  std::int64_t mtime_nanoseconds = 0;
  Attributes attributes;
};

struct FileShape {
  std::uint64_t bytes = 0;
  bool sparse = false;  // skip() will be called
};

// The port that a reader of archives writes to: a tree of entries.
//
// Paths are clean and relative: components between single slashes, none of them
// "." or "..", "" for the root. Directories that an entry needs and nobody
// described are made. After an error the tree is of no use.
class EntrySink {
 public:
  virtual ~EntrySink() = default;

  // A directory that is there already takes the new description.
  virtual Result<void> make_directory(const std::string& path, const EntryMeta& meta) = 0;
  // One file at a time: begin, then write and skip until shape.bytes are
  // covered (what is not is a hole at the end), then finish.
  virtual Result<void> begin_file(const std::string& path, const EntryMeta& meta, const FileShape& shape) = 0;
  virtual Result<void> write(std::string_view bytes) = 0;
  virtual Result<void> skip(std::uint64_t bytes) = 0;
  virtual Result<void> finish_file() = 0;
  virtual Result<void> make_symlink(const std::string& path, const std::string& target, const EntryMeta& meta) = 0;
  // To the file that `target` names now, whatever takes that name later.
  virtual Result<void> make_hard_link(const std::string& path, const std::string& target) = 0;
  virtual Result<void> make_fifo(const std::string& path, const EntryMeta& meta) = 0;
  // Hides `path` of the layers below, or all that they have in a directory.
  virtual Result<void> make_whiteout(const std::string& path) = 0;
  virtual Result<void> make_opaque(const std::string& path) = 0;
  // Directories made because an entry below needed them.
  virtual std::uint64_t implied_directories() const = 0;
};

// What happens at a symbolic link in the middle of a path, and when an entry
// meets another kind of entry under its name.
enum class Overlaps {
  kRefuse,   // one archive: nobody honest writes through a link it carries
  kReplace,  // layers over layers: links lead on inside the root, newer entries win
  kLayer,    // one layer, whose lower ones are not here: as kReplace, and what is missing may lie below
};

}  // namespace dsec::erofs
