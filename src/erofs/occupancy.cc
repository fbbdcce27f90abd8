#include "erofs/occupancy.h"

#include <algorithm>
#include <array>
#include <tuple>

namespace dsec::erofs {
namespace {

// The first byte of [begin, end) that is not zero.
Result<std::optional<std::uint64_t>> find_nonzero(Source& metadata, std::uint64_t begin, std::uint64_t end) {
  std::array<char, 4096> buffer;
  while (begin < end) {
    const std::span<char> part(buffer.data(), static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), end - begin)));
    DSEC_TRY(metadata.read(begin, part));
    const auto found = std::find_if(part.begin(), part.end(), [](char byte) { return byte != 0; });
    if (found != part.end()) return std::optional(begin + static_cast<std::uint64_t>(found - part.begin()));
    begin += part.size();
  }
  return std::optional<std::uint64_t>();
}

}  // namespace

bool Occupancy::add(Kind kind, std::uint64_t begin, std::uint64_t end, std::uint32_t owner) {
  if (begin >= end) return true;
  if (kind == Kind::kStructure) {
    structure_bytes_ += end - begin;
    if (structure_bytes_ > metadata_bytes_) return false;
  }
  runs_.push_back({begin, end, owner, kind});
  return true;
}

std::optional<Occupancy::Clash> Occupancy::find_overlap() const {
  for (std::size_t i = 1; i < runs_.size(); ++i) {
    const Run& before = runs_[i - 1];
    const Run& run = runs_[i];
    if (run.begin >= before.end) continue;
    const bool equal = run.begin == before.begin && run.end == before.end && run.kind == before.kind;
    if (!equal || run.kind == Kind::kStructure) return Clash{run.begin, run.owner, "two things lie in one place"};
  }
  return {};
}

Result<std::optional<Occupancy::Clash>> Occupancy::find_clash(Source& metadata) {
  std::sort(runs_.begin(), runs_.end(), [](const Run& a, const Run& b) {
    return std::tie(a.begin, a.end, a.kind, a.owner) < std::tie(b.begin, b.end, b.kind, b.owner);
  });
  if (std::optional<Clash> overlap = find_overlap()) return overlap;
  std::uint64_t at = 0;
  const auto unused_until = [&](std::uint64_t end) { return find_nonzero(metadata, at, std::min(end, metadata_bytes_)); };
  for (const Run& run : runs_) {
    if (at >= metadata_bytes_) break;
    DSEC_ASSIGN(const std::optional<std::uint64_t> hidden, unused_until(run.begin));
    if (hidden) return std::optional(Clash{*hidden, 0, "a byte that belongs to nothing is not zero"});
    at = run.end;
  }
  DSEC_ASSIGN(const std::optional<std::uint64_t> hidden, unused_until(metadata_bytes_));
  if (hidden) return std::optional(Clash{*hidden, 0, "a byte that belongs to nothing is not zero"});
  return std::optional<Clash>();
}

}  // namespace dsec::erofs
