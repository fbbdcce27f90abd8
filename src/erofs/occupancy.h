// Who owns which bytes of an image: the checker's proof that nothing overlaps
// and nothing is hidden. Offsets are in the image's one address space.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "erofs/source.h"

namespace dsec::erofs {

class Occupancy {
 public:
  // kStructure: one owner. Content: several owners of exactly the same run.
  enum class Kind : std::uint8_t { kStructure, kContent, kPacked };
  struct Clash {
    std::uint64_t offset = 0;
    std::uint32_t owner = 0;
    std::string_view what;
  };

  explicit Occupancy(std::uint64_t metadata_bytes) : metadata_bytes_(metadata_bytes) {}

  // `owner` comes back in a Clash. False when structures alone are more than
  // the metadata can hold: they overlap, and who asks stops before following
  // the same bytes once more.
  [[nodiscard]] bool add(Kind kind, std::uint64_t begin, std::uint64_t end, std::uint32_t owner);
  // The first overlap by offset, or the first byte of the metadata that is not
  // zero and not owned. Sorts what was added.
  Result<std::optional<Clash>> find_clash(Source& metadata);

 private:
  struct Run {
    std::uint64_t begin;
    std::uint64_t end;
    std::uint32_t owner;
    Kind kind;
  };
  std::optional<Clash> find_overlap() const;

  const std::uint64_t metadata_bytes_;
  std::uint64_t structure_bytes_ = 0;
  std::vector<Run> runs_;
};

}  // namespace dsec::erofs
