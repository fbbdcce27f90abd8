// Bytes in pages of their own, so that they can be read and written with O_DIRECT.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

namespace dsec::origin {

class Buffer {
 public:
  static constexpr std::size_t kAlignment = 4096;

  Buffer() = default;
  // Not cleared. The memory is a whole number of pages.
  explicit Buffer(std::size_t size) : memory_(allocate(size)), size_(size) {}
  Buffer(Buffer&& other) noexcept : memory_(std::move(other.memory_)), at_(std::exchange(other.at_, 0)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    memory_ = std::move(other.memory_);
    at_ = std::exchange(other.at_, 0);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  char* data() { return memory_.get() + at_; }
  const char* data() const { return memory_.get() + at_; }
  std::size_t size() const { return size_; }
  std::string_view view() const { return {data(), size_}; }
  // What remains starts `front` bytes further on; data() stays aligned when
  // `front` is a multiple of kAlignment. front + size <= size().
  void narrow(std::size_t front, std::size_t size) {
    at_ += front;
    size_ = size;
  }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  static std::unique_ptr<char, Free> allocate(std::size_t size);

  std::unique_ptr<char, Free> memory_;
  std::size_t at_ = 0;
  std::size_t size_ = 0;
};

}  // namespace dsec::origin
