// What a COPY, ADD or WORKDIR of a build puts into an image, as the worker reads it
// from the file `copy` of its private directory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace dsec::image {

struct InlineFile {
  std::string name;
  std::string content;
};

struct InlineLink {
  std::string path;    // absolute
  std::string target;
};

struct CopySpec {
  enum class Directory { kNotAsked, kMake };
  std::vector<std::string> sources;  // in the source image; may have *, ? and [...] in a name
  std::vector<InlineFile> files;     // that the Dockerfile itself holds
  std::vector<InlineLink> links;     // symbolic ones, beside all else
  std::string destination;           // absolute; a final slash says that it is a directory
  Directory directory = Directory::kNotAsked;  // kMake: the destination is to be there, and no more
  std::string owner;                 // "user", "user:group", ids or names of the image; "" = see keep_owners
  std::optional<std::uint16_t> mode;
  bool keep_owners = false;          // else root's
  bool unpack = false;               // archives among the sources
};

std::string encode(const CopySpec& spec);
Result<CopySpec> decode_copy_spec(std::string_view text);

}  // namespace dsec::image
