// Files of one image put into another by metadata: their content stays where the
// first one has it. Content is copied where the data file it lies in holds mostly
// other things, so that no image keeps a gigabyte for a file of it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "erofs/digest.h"
#include "erofs/reader.h"
#include "erofs/stack_lookup.h"
#include "erofs/writer.h"

namespace dsec::erofs {

struct CopyRules {
  std::optional<std::uint32_t> uid;  // nothing: as the source has it
  std::optional<std::uint32_t> gid;
  std::optional<std::uint16_t> mode;
  std::uint64_t max_bytes = 0;
  std::uint64_t max_entries = 0;
};

class EntryCopy {
 public:
  // `writer` was made with Overlaps::kLayer and data_of({&source}). `below` is what
  // the result will lie over: a directory that is a link to one there stays a link.
  EntryCopy(Reader& source, LayerStack& below, Writer& writer, CopyRules rules);

  // One entry that is no directory; clean and relative paths.
  Result<void> add_file(const std::string& from, const StoredInode& node, const std::string& to);
  // What is in a directory, into `to`.
  Result<void> add_contents(const std::string& from, const std::string& to);
  // Puts the content of all of them in its place. Once, last.
  Result<void> place_contents();
  // Of all that was added: paths, kinds, modes, owners, links, bytes; no times. After place_contents().
  std::string digest() const { return digest_; }
  std::int64_t newest_seconds() const { return newest_seconds_; }
  std::uint64_t entries() const { return entries_; }
  std::uint64_t content_bytes() const { return content_bytes_; }

 private:
  struct File {
    std::uint32_t node = 0;  // in the tree
    StoredInode from;
    std::string to;
  };
  struct Placed {
    std::uint32_t body = 0;
    std::string digest;
  };
  Result<EntryMeta> meta_of(const StoredInode& node);
  Result<void> count(std::uint64_t bytes);
  Result<void> add_entry(const StoredInode& node, const std::string& to);
  // Where what is in it belongs: where the links of `below` lead.
  Result<std::string> add_directory(const StoredInode& node, const std::string& to);
  void note(char kind, const std::string& to, const EntryMeta& meta, const std::string& more);
  Result<std::map<std::uint32_t, bool>> devices_to_keep();
  Result<std::uint32_t> refer(const File& file, const std::map<std::uint32_t, bool>& keep);
  Result<std::string> digest_of(const StoredInode& node);
  Result<std::uint32_t> copy(const File& file);

  Reader& source_;
  LayerStack& below_;
  Writer& writer_;
  const CopyRules rules_;
  std::vector<File> files_;
  std::map<std::string, std::string> noted_;  // by path: what the digest covers
  std::string digest_;
  std::int64_t newest_seconds_ = 0;
  std::uint64_t entries_ = 0;
  std::uint64_t content_bytes_ = 0;
  std::string buffer_;
};

}  // namespace dsec::erofs
