#include "sys/cgroup_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>

#include "sys/cgroup.h"
#include "sys/file.h"

namespace dsec::sys {

Result<void> make_dir(int dir, const std::string& name) {
  if (::mkdirat(dir, name.c_str(), 0755) < 0 && errno != EEXIST) return errno_error("mkdir cgroup " + name, errno);
  return {};
}

Result<void> remove_dir(int dir, const std::string& name) {
  if (::unlinkat(dir, name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT) return {};
  if (errno == EBUSY || errno == ENOTEMPTY)
    return Error(ErrorCode::kConflict, "cgroup " + name + " is in use", EBUSY);
  return errno_error("rmdir cgroup " + name, errno);
}

Result<Fd> open_dir(int dir, const std::string& name) { return open_at(dir, name, O_RDONLY | O_DIRECTORY); }

std::vector<std::string> children(int dir) {
  std::vector<std::string> names;
  Fd copy(::openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!copy) return names;
  DIR* stream = ::fdopendir(copy.get());
  if (!stream) return names;
  copy.release();
  while (const dirent* entry = ::readdir(stream))
    if (entry->d_type == DT_DIR && entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  ::closedir(stream);
  return names;
}

std::uint64_t number(std::string_view text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::uint64_t read_number(int dir, const std::string& path) {
  const auto text = read_file_at(dir, path);
  return text ? number(*text) : 0;
}

std::uint64_t read_field(int dir, const std::string& path, std::string_view key) {
  const auto text = read_file_at(dir, path);
  return text ? cgroup_field(*text, key) : 0;
}

std::uint64_t full_stall(int dir, const std::string& path) {
  const auto text = read_file_at(dir, path);
  if (!text) return 0;
  const std::size_t line = text->find("full ");
  if (line == std::string::npos) return 0;
  const std::size_t total = text->find("total=", line);
  return total == std::string::npos ? 0 : number(std::string_view(*text).substr(total + 6));
}

std::uint64_t cgroup_field(std::string_view text, std::string_view key) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::string_view line = text.substr(at, text.find('\n', at) - at);
    if (line.size() > key.size() && line.starts_with(key) && line[key.size()] == ' ')
      return number(line.substr(key.size() + 1));
    at += line.size() + 1;
  }
  return 0;
}

}  // namespace dsec::sys
