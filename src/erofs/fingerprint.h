// A fast hash that says where an equal file may be. Whoever asks compares the
// bytes before he believes it: it is not keyed, and collisions can be made.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace dsec::erofs {

// The two halves of a product, over one another.
inline std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

class Fingerprint {
 public:
  // The same however the bytes are cut into calls.
  void update(std::string_view bytes);
  std::uint64_t value() const;

 private:
  static constexpr std::size_t kStep = 32;

  void mix(std::string_view step);  // kStep bytes

  std::uint64_t left_ = 0x9E3779B97F4A7C15;
  std::uint64_t right_ = 0xC2B2AE3D27D4EB4F;
  std::uint64_t bytes_ = 0;
  std::array<char, kStep> rest_{};  // bytes_ % kStep of them wait
};

}  // namespace dsec::erofs
