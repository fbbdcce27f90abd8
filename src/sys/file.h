// Files, as Results. Paths are (directory descriptor, name) where the name may
// come from outside.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "sys/fd.h"

namespace dsec::sys {

Result<Fd> open_at(int dir, const std::string& path, int flags, mode_t mode = 0);
Result<Fd> duplicate(int fd);
Result<std::string> read_all(int fd, std::size_t limit);
Result<std::string> read_file(const std::string& path, std::size_t limit = 1 << 20);
Result<std::string> read_file_at(int dir, const std::string& path, std::size_t limit = 1 << 20);
// Creates missing parents.
Result<void> make_directories(const std::string& path, mode_t mode);
// One write(2) to an existing file: for cgroup and /proc control files.
Result<void> write_at(int dir, const std::string& path, std::string_view text);
Result<void> write_all(int fd, std::string_view bytes);
// Temporary name, fsync, rename, fsync of the directory.
Result<void> replace_file(const std::string& path, std::string_view bytes, mode_t mode);
// Names without "." and "..", in no order.
Result<std::vector<std::string>> list_directory(const std::string& path);
// Below a directory only: never follows a link out of it, never crosses a mount.
Result<void> remove_tree_at(int dir, const std::string& name);

}  // namespace dsec::sys
