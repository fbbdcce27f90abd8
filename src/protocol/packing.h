// Plain binary fields for messages between programs of one node: fixed-width
// little-endian numbers, and byte strings with a u32 length before them.
//
// A reader that runs past the end, or meets a length past it, fails for good:
// ok() turns false, and every later field reads as zero or empty.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace dsec::protocol {

class Packer {
 public:
  Packer& u8(std::uint8_t v) { return raw(&v, sizeof v); }
  Packer& u32(std::uint32_t v) { return raw(&v, sizeof v); }
  Packer& u64(std::uint64_t v) { return raw(&v, sizeof v); }
  Packer& bytes(std::string_view v) {
    u32(static_cast<std::uint32_t>(v.size()));
    out_.append(v);
    return *this;
  }
  std::string take() { return std::move(out_); }

 private:
  Packer& raw(const void* data, std::size_t size) {
    out_.append(static_cast<const char*>(data), size);
    return *this;
  }
  std::string out_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view in) : in_(in) {}
  std::uint8_t u8() { return number<std::uint8_t>(); }
  std::uint32_t u32() { return number<std::uint32_t>(); }
  std::uint64_t u64() { return number<std::uint64_t>(); }
  std::string bytes() {
    const std::uint32_t size = u32();
    if (size > in_.size()) return fail(), std::string();
    std::string out(in_.substr(0, size));
    in_.remove_prefix(size);
    return out;
  }
  bool ok() const { return ok_; }
  // Everything was read, and nothing was missing.
  bool finished() const { return ok_ && in_.empty(); }

 private:
  template <typename T>
  T number() {
    T v{};
    if (in_.size() < sizeof v) return fail(), v;
    std::memcpy(&v, in_.data(), sizeof v);
    in_.remove_prefix(sizeof v);
    return v;
  }
  void fail() {
    ok_ = false;
    in_ = {};
  }
  std::string_view in_;
  bool ok_ = true;
};

}  // namespace dsec::protocol
