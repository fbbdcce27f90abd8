// A read of the kernel that waits for the parts that it is made of.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "origin/buffer.h"

namespace dsec::stored {

// Parts come from any thread. Once the last one is in, `answer` is called, by
// whoever brought it, with all bytes or with the first error.
class PendingRead {
 public:
  using Answer = std::function<void(Result<std::string_view>)>;

  // Its maker holds the first part, and gives it up by part_done().
  PendingRead(std::uint64_t offset, std::size_t length, Answer answer) : offset_(offset), length_(length), answer_(std::move(answer)) {}

  void await_part() { parts_.fetch_add(1); }
  // Takes what it needs of the bytes that stand at `at` in the object. Parts do not overlap.
  void fill(std::uint64_t at, std::string_view bytes);
  void fail(const Error& error);
  void part_done();

 private:
  const std::uint64_t offset_;
  const std::size_t length_;
  const Answer answer_;
  std::atomic<int> parts_{1};
  std::once_flag allocated_;  // memory only from the first part on: those who wait have none
  origin::Buffer bytes_;
  std::mutex mutex_;  // guards error_
  std::optional<Error> error_;
};

}  // namespace dsec::stored
