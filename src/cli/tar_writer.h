// A directory as a tar stream, produced as it is asked for, in constant memory.
//
// POSIX pax format: numeric owners, permission bits and mtime of each entry,
// links, hard links told by inode, devices and FIFOs. Sockets are left out.
// Names are relative to the root. Entries come sorted, directories before what
// is in them, so that the same tree gives the same bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sys/fd.h"

namespace dsec::cli {

struct Owner {
  std::uint64_t uid = 0;
  std::uint64_t gid = 0;
};
// "0:0"
Result<Owner> parse_owner(std::string_view text);

struct TarEntry {
  std::string name;
  char type = '0';  // of the format: 0 file, 1 hard link, 2 symlink, 3 char, 4 block, 5 directory, 6 FIFO
  std::uint64_t size = 0;
  std::uint32_t mode = 0644;
  std::uint64_t uid = 0;
  std::uint64_t gid = 0;
  std::int64_t mtime = 0;
  std::string link;
  std::uint32_t device_major = 0;
  std::uint32_t device_minor = 0;
};
// The header blocks of an entry: with a pax record for what ustar cannot say.
std::string tar_header(const TarEntry& entry);
inline std::string tar_end() { return std::string(1024, '\0'); }
inline std::size_t tar_padding(std::uint64_t size) { return static_cast<std::size_t>((512 - size % 512) % 512); }

class TarWriter {
 public:
  struct Options {
    std::optional<Owner> owner;  // in place of each entry's own
    std::string prefix;          // put before every name: "project/"
    // Of names as they are in the archive, without the prefix: entries left out. What
    // is below a directory that is left out is asked about all the same if `descend`.
    std::function<bool(const std::string& name)> skip = {};
    bool descend = false;
  };
  // `root` is a directory, or one file (then the only entry, under its name).
  static Result<TarWriter> open(const std::string& root, Options options);
  // The next part, about 256 KiB; empty at the end. kConflict when a file
  // shrinks while it is read.
  Result<std::string> next();
  std::uint64_t content_bytes() const { return content_bytes_; }  // so far

 private:
  struct Pending {
    std::string path;  // on disk
    std::string name;  // in the archive
  };
  Result<void> add(const Pending& pending, std::string& out);
  Result<void> push_children(const Pending& directory);

  Options options_;
  std::vector<Pending> stack_;  // the next one last
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::string> inodes_;
  sys::Fd file_;
  std::string file_name_;
  std::uint64_t file_left_ = 0;
  std::uint64_t file_size_ = 0;
  std::uint64_t content_bytes_ = 0;
  bool ended_ = false;
};

}  // namespace dsec::cli
