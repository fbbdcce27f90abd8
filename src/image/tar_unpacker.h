// From a tar stream (plain, gzip, zstd, xz) to a sink of entries, within limits.
//
// libarchive reads, the sink keeps. What a layer cannot carry is dropped and
// counted: device nodes, extended attributes other than user.* and
// security.capability, and overlayfs's own attributes in any namespace. An
// archive that lies, ends early, leads out of the tree or passes a limit is an
// error; the caller throws the tree away then.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "base/result.h"
#include "erofs/entry.h"
#include "image/import_messages.h"

struct archive;
struct archive_entry;

namespace dsec::image {

struct UnpackLimits {
  std::uint64_t max_bytes = 0;
  std::uint64_t max_entries = 0;
};

// One tree from one archive.
class TarUnpacker {
 public:
  using Progress = std::function<void(std::uint64_t read_bytes)>;

  // `at`: a clean path that the archive's root stands at, "" = the tree's root,
  // whose owner and mode are then not the archive's but root's and 0755.
  TarUnpacker(erofs::EntrySink& tree, std::string at, UnpackLimits limits, Progress progress);

  // Reads `input` to the archive's end.
  Result<void> unpack(int input);
  // The same, with .wh.NAME and .wh..wh..opq as in OCI layers: they hide what
  // lower layers brought, and nothing that this one brings. Into the root alone,
  // whose owner and mode are kept.
  Result<void> unpack_layer(int input);

  const ImportCounts& counts() const { return counts_; }
  std::int64_t newest_seconds() const { return newest_seconds_; }

 private:
  enum class Whiteouts { kIgnore, kKeep };
  Result<void> unpack(int input, Whiteouts whiteouts);
  Result<void> take_entry(archive* reader, archive_entry* entry, Whiteouts whiteouts);
  Result<void> take_file(archive* reader, archive_entry* entry, const std::string& path, const erofs::EntryMeta& meta);
  Result<void> take_content(archive* reader, const std::string& path, std::uint64_t size);
  Result<void> take_whiteout(const std::string& path);
  Result<void> hide_below(const std::string& directory);
  bool is_hidden(const std::string& path) const;
  void note_path(const std::string& path, bool directory);
  erofs::EntryMeta meta_of(archive_entry* entry);
  Result<void> count_entry();

  erofs::EntrySink& tree_;
  const std::string at_;
  const UnpackLimits limits_;
  const Progress progress_;
  ImportCounts counts_;
  std::int64_t newest_seconds_ = 0;
  // Of the layer being unpacked: what it brought, with the directories above, and
  // whether it is a directory; what it hides.
  std::map<std::string, bool> brought_;
  std::set<std::string> hidden_;
};

}  // namespace dsec::image
