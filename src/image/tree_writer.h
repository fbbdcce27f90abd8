// TreeWriter puts entries of a foreign archive below one directory and nowhere else.
//
// Every name is resolved from the root's descriptor by openat2: never upwards,
// never through a magic link, and through a symbolic link only where the policy
// says so, and then as if the root were "/". Names are clean: see clean_path().
// Runs in the confined worker, as root of its user namespace.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sys/fd.h"

namespace dsec::image {

// The relative path of an entry: no "." or empty components, no slash at either
// end; "" is the root itself. Refuses absolute paths, "..", and what a
// filesystem cannot hold or a tool would stumble over (components past 255
// bytes, paths past 3,500, more than 200 levels).
Result<std::string> clean_path(std::string_view raw);

struct EntryMeta {
  mode_t mode = 0755;  // permission bits, set-id bits and the sticky bit
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::int64_t mtime_seconds = 0;
  std::int64_t mtime_nanoseconds = 0;
  std::vector<std::pair<std::string, std::string>> attributes;
};

// What happens at a symbolic link in the middle of a path, and when an entry
// meets another kind of entry under its name.
enum class Overlaps {
  kRefuse,   // one archive: nobody honest writes through a link it carries
  kReplace,  // layers over layers: links lead on inside the root, newer entries win
};

class TreeWriter {
 public:
  TreeWriter(sys::Fd root, Overlaps overlaps) : root_(std::move(root)), overlaps_(overlaps) {}

  Result<void> make_directory(const std::string& path, const EntryMeta& meta);
  // The file is empty and 0600 until finish_file().
  Result<sys::Fd> begin_file(const std::string& path);
  Result<void> finish_file(const sys::Fd& file, const EntryMeta& meta);
  Result<void> make_symlink(const std::string& path, const std::string& target, const EntryMeta& meta);
  Result<void> make_hard_link(const std::string& path, const std::string& target);
  Result<void> make_fifo(const std::string& path, const EntryMeta& meta);
  // Removes a file or a whole directory; absent is fine.
  Result<void> remove(const std::string& path);
  // The names in a directory; empty when there is none.
  Result<std::vector<std::string>> names(const std::string& path);
  // A directory under this name is made (0755, root) unless one is there.
  Result<void> ensure_directory(const std::string& path, mode_t mode);
  // Sets the times of directories, which every entry made in them has changed.
  // Directories that no entry described get `unstated_seconds`.
  Result<void> finish(std::int64_t unstated_seconds);

  // Goes on below another root, to which everything has been copied.
  void move_to(sys::Fd root);

  // Directories made because an entry below needed them.
  std::uint64_t implied_directories() const { return implied_directories_; }

 private:
  struct DirectoryTime {
    bool stated = false;
    std::int64_t seconds = 0;
    std::int64_t nanoseconds = 0;
  };

  Result<sys::Fd> open_directory(const std::string& path);
  // The parent of `path`, made if missing; `name` is the last component.
  // The descriptor is valid until the next call.
  Result<int> open_parent(const std::string& path, std::string& name);
  // Makes room for an entry that is no directory.
  Result<void> clear(int parent, const std::string& name, const std::string& path);

  sys::Fd root_;
  const Overlaps overlaps_;
  std::string cached_parent_;
  sys::Fd cached_fd_;         // stays open while a caller uses it
  bool cache_holds_ = false;  // cached_fd_ is still what cached_parent_ leads to
  std::map<std::string, DirectoryTime> directories_;
  std::uint64_t implied_directories_ = 0;
};

}  // namespace dsec::image
