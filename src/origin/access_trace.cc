#include "origin/access_trace.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_set>

namespace dsec::origin {

namespace {

static_assert(sizeof(Touch) == 16 && std::endian::native == std::endian::little);
constexpr std::string_view kMagic = "DSECTRC1";

}  // namespace

std::uint64_t pages_of(std::uint64_t chunk, std::uint64_t offset, std::uint64_t length) {
  const std::uint64_t start = chunk * ChunkIndex::kChunkBytes;
  const std::uint64_t from = std::max(offset, start);
  const std::uint64_t to = std::min(offset + length, start + ChunkIndex::kChunkBytes);
  if (from >= to) return 0;
  const std::uint64_t first = (from - start) / AccessTrace::kPageBytes;
  const std::uint64_t last = (to - 1 - start) / AccessTrace::kPageBytes;
  return (~0ull >> (63 - (last - first))) << first;
}

Result<AccessTrace> AccessTrace::parse(std::string_view bytes, std::uint64_t object_bytes) {
  const auto wrong = [](const char* what) { return Error(ErrorCode::kDataFault, std::string("access trace: ") + what); };
  DSEC_ASSIGN(const ChunkedHead head, parse_head(bytes, kMagic, "access trace"));
  if (head.object_bytes != object_bytes) return wrong("of another object");
  bytes.remove_prefix(ChunkedHead::kBytes);
  if (head.number > kMaxTouches || bytes.size() != head.number * sizeof(Touch)) return wrong("its length does not fit its entries");
  std::vector<Touch> touches(head.number);
  if (!touches.empty()) std::memcpy(touches.data(), bytes.data(), bytes.size());
  std::unordered_set<std::uint32_t> seen;
  std::uint32_t last_ms = 0;
  for (const Touch& touch : touches) {
    const std::uint64_t there = pages_of(touch.chunk, 0, object_bytes);
    if (touch.pages == 0 || (touch.pages & ~there) != 0) return wrong("it has pages that the object does not have");
    if (!seen.insert(touch.chunk).second) return wrong("it has a chunk twice");
    if (touch.at_ms < last_ms) return wrong("its times do not ascend");
    last_ms = touch.at_ms;
  }
  return AccessTrace(object_bytes, std::move(touches));
}

std::string AccessTrace::bytes() const {
  std::string out = to_bytes(kMagic, {.number = static_cast<std::uint32_t>(touches_.size()), .object_bytes = object_bytes_});
  out.append(reinterpret_cast<const char*>(touches_.data()), touches_.size() * sizeof(Touch));
  return out;
}

}  // namespace dsec::origin
