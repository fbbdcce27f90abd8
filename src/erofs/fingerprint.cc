#include "erofs/fingerprint.h"

#include <algorithm>
#include <cstring>

namespace dsec::erofs {

namespace {

constexpr std::array<std::uint64_t, 4> kOdd = {0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 0x589965CC75374CC3};

std::uint64_t word_at(const char* bytes) {
  std::uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

}  // namespace

// Two chains, so that the processor multiplies for one while it waits for the other.
void Fingerprint::mix(std::string_view step) {
  const char* const at = step.data();
  left_ = fold(word_at(at) ^ kOdd[0] ^ left_, word_at(at + 8) ^ kOdd[1]);
  right_ = fold(word_at(at + 16) ^ kOdd[2] ^ right_, word_at(at + 24) ^ kOdd[3]);
}

void Fingerprint::update(std::string_view bytes) {
  const std::size_t waiting = bytes_ % kStep;
  bytes_ += bytes.size();
  if (waiting != 0) {
    const std::size_t part = std::min(bytes.size(), kStep - waiting);
    std::memcpy(rest_.data() + waiting, bytes.data(), part);
    bytes.remove_prefix(part);
    if (waiting + part < kStep) return;
    mix({rest_.data(), kStep});
  }
  for (; bytes.size() >= kStep; bytes.remove_prefix(kStep)) mix(bytes.substr(0, kStep));
  if (!bytes.empty()) std::memcpy(rest_.data(), bytes.data(), bytes.size());
}

std::uint64_t Fingerprint::value() const {
  Fingerprint end = *this;
  std::memset(end.rest_.data() + bytes_ % kStep, 0, kStep - bytes_ % kStep);
  end.mix({end.rest_.data(), kStep});
  return fold(end.left_ ^ bytes_, end.right_ ^ kOdd[0]);
}

}  // namespace dsec::erofs
