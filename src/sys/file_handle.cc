#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "sys/mounts.h"

namespace dsec::sys {

namespace {

struct Handle {
  struct file_handle head;
  char bytes[MAX_HANDLE_SZ];
};

}  // namespace

Result<std::string> file_handle(int dir, const char* path) {
  Handle handle{};
  handle.head.handle_bytes = sizeof handle.bytes;
  int mount = 0;
  if (::name_to_handle_at(dir, path, &handle.head, &mount, 0) != 0) return errno_error(std::string("name the handle of ") + path, errno);
  std::string out(reinterpret_cast<const char*>(&handle.head.handle_type), sizeof handle.head.handle_type);
  out.append(reinterpret_cast<const char*>(handle.head.f_handle), handle.head.handle_bytes);
  return out;
}

Result<Fd> open_handle(int on, const std::string& handle, int flags) {
  Handle named{};
  const std::size_t type_bytes = sizeof named.head.handle_type;
  if (handle.size() <= type_bytes || handle.size() - type_bytes > sizeof named.bytes) return Error(ErrorCode::kDataFault, "not a file's handle");
  std::memcpy(&named.head.handle_type, handle.data(), type_bytes);
  named.head.handle_bytes = static_cast<unsigned>(handle.size() - type_bytes);
  std::memcpy(named.head.f_handle, handle.data() + type_bytes, named.head.handle_bytes);
  Fd fd(::open_by_handle_at(on, &named.head, flags | O_CLOEXEC));
  if (!fd) return errno_error("open a file by its handle", errno);
  return fd;
}

}  // namespace dsec::sys
