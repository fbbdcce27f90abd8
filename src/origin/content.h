// What is put into a store: bytes of a file or of memory, with their digest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "sys/fd.h"

namespace dsec::origin {

class Content {
 public:
  static Content of_bytes(std::string bytes);
  // `fd` is duplicated. The file must not change any more; it is hashed here
  // when `hex` is empty, which blocks for as long as reading it takes.
  static Result<Content> of_file(int fd, std::string hex = {});

  std::uint64_t size() const { return size_; }
  const std::string& hex() const { return hex_; }  // SHA-256 of all of it
  // All of [offset, offset + length), or an error.
  Result<void> read(std::uint64_t offset, char* out, std::size_t length) const;

 private:
  Content() = default;
  sys::Fd file_;  // or none, and bytes_
  std::string bytes_;
  std::string hex_;
  std::uint64_t size_ = 0;
};

}  // namespace dsec::origin
