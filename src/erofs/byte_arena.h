// Bytes that stay where they are until the arena goes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace dsec::erofs {

class ByteArena {
 public:
  std::string_view keep(std::string_view bytes) {
    if (bytes.size() > left_) {
      left_ = std::max(kChunkBytes, bytes.size());
      chunks_.push_back(std::make_unique_for_overwrite<char[]>(left_));
      free_ = chunks_.back().get();
    }
    char* const kept = free_;
    std::copy(bytes.begin(), bytes.end(), kept);
    free_ += bytes.size();
    left_ -= bytes.size();
    bytes_ += bytes.size();
    return {kept, bytes.size()};
  }
  std::uint64_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kChunkBytes = 1 << 20;

  std::vector<std::unique_ptr<char[]>> chunks_;
  char* free_ = nullptr;  // in the last chunk
  std::size_t left_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace dsec::erofs
