// Finds one path in layers that lie over one another, without laying them.
//
// The answer is what the merge of the same layers (layer_merge.h) would have there:
// whiteouts and opaque directories hide, directories that nobody described let what
// lies below show, links lead on inside the root.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "erofs/reader.h"

namespace dsec::erofs {

class LayerStack {
 public:
  struct Found {
    std::size_t layer = 0;
    StoredInode node;
    std::string path;  // clean and relative: where the links led
  };
  enum class LastLink { kFollow, kKeep };

  // Lowest first; the readers outlive this.
  explicit LayerStack(std::vector<Reader*> layers) : layers_(std::move(layers)) {}

  // nullopt: nothing is there. ".." at the root stays there. kInvalidArgument for
  // links without an end.
  Result<std::optional<Found>> find(std::string_view path, LastLink last);
  // A regular file's content; nullopt when there is none. kTooLarge beyond `limit`.
  Result<std::optional<std::string>> read_file(std::string_view path, std::size_t limit);

 private:
  struct Seen;
  // Of a path whose directories are no links.
  Result<std::optional<Found>> find_here(const std::string& path, std::size_t layers);
  Result<Seen> look_in(std::size_t layer, const std::string& path);

  std::vector<Reader*> layers_;
};

}  // namespace dsec::erofs
