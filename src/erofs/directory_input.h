// Trees of this host as input for the writer: a directory, or the upper of an
// overlay, which becomes a layer that shows the same over the same lower ones.
//
// Of an upper, whiteouts and opaque directories are kept; all other marks of
// overlayfs, under trusted. and under user., are dropped. A tree whose files only
// point into the layers below (redirect, metacopy) is kUnsupported: such a layer
// would mean something else over others. So is a device node. Sockets and
// attributes that no image holds are dropped and counted. A file with several
// names is one file as far as its names lie in this tree.
//
// Links are never followed and mounts never crossed, so nothing beside the tree
// is read whoever changes it meanwhile; but what is read is one state only if
// nobody does: kConflict when a change is noticed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "erofs/writer.h"

namespace dsec::erofs {

struct IdRange {
  std::uint32_t outside = 0;  // the first one on the host
  std::uint32_t inside = 0;
  std::uint32_t count = 0;
};

// Is shown everything that goes into the image, on its way.
class ContentWatch {
 public:
  virtual ~ContentWatch() = default;
  // A name, the target of a link, the value of an attribute; whole.
  virtual void text(std::string_view path, std::string_view text) = 0;
  // A file's content in its order, in any pieces; zeros of holes are left out, and
  // what lies on both sides of one does not touch.
  virtual void begin(std::string_view path) = 0;
  virtual void bytes(std::string_view piece) = 0;
  virtual void hole() = 0;
};

struct DirectoryInputOptions {
  enum class Form { kDirectory, kOverlayUpper };
  Form form = Form::kDirectory;
  std::vector<IdRange> ids;  // empty: owners are taken as they are; else an owner outside is an error
  std::vector<std::string> exclude;  // path_patterns.h: what matches is left out with all below
  std::uint64_t max_bytes = 64ULL << 30;  // of files, holes included
  std::uint64_t max_entries = 4'000'000;
  const std::atomic<bool>* cancelled = nullptr;
  ContentWatch* watch = nullptr;
  std::function<void(std::uint64_t content_bytes)> on_progress;  // after each file
  // Room for content that the writer gets when all has been read, for a tree that may change
  // again then. A larger tree goes through as it is read. Pages that are there already
  // are what makes it fast.
  std::span<char> hold = {};
  std::function<void(std::uint64_t content_bytes)> on_read;  // nothing of the tree is read any more
};

struct DirectoryInputCounts {
  std::uint64_t content_bytes = 0;
  std::uint64_t entries = 0;
  std::uint64_t excluded = 0;  // not what lies below them
  std::uint64_t whiteouts = 0;
  std::uint64_t sockets_dropped = 0;
  std::uint64_t attributes_dropped = 0;  // overlayfs's own are not counted
};

// Gives everything below `root` to the writer, names in order. The same tree makes
// the same image. Blocks; at most two descriptors at a time.
Result<DirectoryInputCounts> add_directory(Writer& writer, int root, const DirectoryInputOptions& options);

}  // namespace dsec::erofs
