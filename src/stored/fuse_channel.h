// /dev/fuse, spoken by us: requests of the kernel in, answers out.
//
// Only what a directory of read-only files needs. The descriptor outlives this
// process in the keeper, so nothing here is said twice: a process that takes a
// filesystem over asks the kernel for every request that is still unanswered.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/result.h"

namespace dsec::stored {

struct FuseRequest {
  std::uint64_t unique = 0;
  std::uint32_t opcode = 0;
  std::uint64_t node = 0;
  std::uint32_t reader_pid = 0;  // as this process's pid namespace numbers it; 0 = a kernel thread or another namespace
  std::span<const char> body;    // in the caller's buffer
};

class FuseChannel {
 public:
  // The kernel refuses a smaller buffer.
  static constexpr std::size_t kBufferBytes = 64 << 10;
  static constexpr std::size_t kMaxReadBytes = 1 << 20;

  // Borrows the descriptor.
  explicit FuseChannel(int fd) : fd_(fd) {}

  // Has the kernel repeat what it asked a process that is gone. Fails before the
  // first request of a new filesystem was answered: then there is nothing to repeat.
  Result<void> ask_again() const;
  // Blocks for the next request; nullopt when the filesystem is gone. Safe on any thread.
  Result<std::optional<FuseRequest>> next(std::span<char> buffer) const;

  // Answers; one whose request was given up meanwhile is dropped. Safe on any thread.
  void answer(std::uint64_t unique, std::string_view bytes) const;
  template <typename T>
  void answer_with(std::uint64_t unique, const T& value) const {
    answer(unique, {reinterpret_cast<const char*>(&value), sizeof value});
  }
  void answer_error(std::uint64_t unique, int error_number) const;
  // The first request of a filesystem, FUSE_INIT.
  void answer_init(const FuseRequest& request) const;

 private:
  void write(std::uint64_t unique, int error_number, std::string_view bytes) const;

  const int fd_;
};

}  // namespace dsec::stored
