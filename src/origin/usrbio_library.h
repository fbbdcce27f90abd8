// The calls of 3FS's user-space I/O (USRBIO), from its shared library, which is
// loaded when it is needed and never linked.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>

#include "base/result.h"

namespace dsec::origin {

// The three structures of its interface, laid out as it has them. Memory for
// data that its daemon can reach:
struct UsrbioMemory {
  std::uint8_t* base = nullptr;
  void* handle = nullptr;
  char id[16] = {};
  char mount_point[256] = {};
  std::size_t size = 0;
  std::size_t block_size = 0;
  int numa = 0;
};
// a ring of requests:
struct UsrbioQueue {
  UsrbioMemory memory;
  void* handle = nullptr;
  char mount_point[256] = {};
  bool for_read = false;
  int io_depth = 0;
  int priority = 0;
  int timeout = 0;
  std::uint64_t flags = 0;
};
// and what became of one.
struct UsrbioDone {
  std::int32_t index = 0;
  std::int32_t reserved = 0;
  std::int64_t result = 0;  // bytes, or -errno
  const void* userdata = nullptr;
};

static_assert(sizeof(UsrbioMemory) == 312 && sizeof(UsrbioQueue) == 600 && sizeof(UsrbioDone) == 24);

class UsrbioLibrary {
 public:
  static constexpr const char* kName = "libhf3fs_api_shared.so";
  static constexpr std::uint64_t kForbidHoles = 2;  // a hole in an object is damage, not zeros

  // kUnavailable when it cannot be loaded or lacks a call. Stays loaded: its
  // threads may outlive what was made with it.
  static Result<std::shared_ptr<const UsrbioLibrary>> load(const std::string& path);

  // As the library's header declares them; 0 or -errno unless said otherwise.
  bool (*is_hf3fs)(int fd) = nullptr;
  int (*extract_mount_point)(char* out, int size, const char* path) = nullptr;  // its length with the end, or -1
  int (*iovcreate)(UsrbioMemory* memory, const char* mount_point, std::size_t size, std::size_t block_size, int numa) = nullptr;
  void (*iovdestroy)(UsrbioMemory* memory) = nullptr;
  int (*iorcreate4)(UsrbioQueue* queue, const char* mount_point, int entries, bool for_read, int io_depth, int timeout, int numa, std::uint64_t flags) = nullptr;
  void (*iordestroy)(UsrbioQueue* queue) = nullptr;
  int (*reg_fd)(int fd, std::uint64_t flags) = nullptr;  // +errno
  void (*dereg_fd)(int fd) = nullptr;
  int (*io_entries)(const UsrbioQueue* queue) = nullptr;
  int (*prep_io)(const UsrbioQueue* queue, const UsrbioMemory* memory, bool read, void* at, int fd, std::size_t offset, std::uint64_t length,
                 const void* userdata) = nullptr;
  int (*submit_ios)(const UsrbioQueue* queue) = nullptr;
  // How many are done; the timeout is a wall-clock time.
  int (*wait_for_ios)(const UsrbioQueue* queue, UsrbioDone* done, int room, int least, const std::timespec* until) = nullptr;

 private:
  UsrbioLibrary() = default;
};

}  // namespace dsec::origin
