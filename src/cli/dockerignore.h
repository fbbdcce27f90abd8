// Which files of a directory are not sent as a build's context.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsec::cli {

// The last pattern that matches a path, or a directory above it, decides; one that
// begins with ! takes back. * and ? stop at slashes, ** does not.
class DockerIgnore {
 public:
  DockerIgnore() = default;
  explicit DockerIgnore(std::string_view text);

  bool ignores(std::string_view path) const;
  // Whether something below an ignored directory may be wanted all the same.
  bool has_exceptions() const { return exceptions_; }

 private:
  struct Pattern {
    std::string text;
    bool keeps = false;
  };
  std::vector<Pattern> patterns_;
  bool exceptions_ = false;
};

}  // namespace dsec::cli
