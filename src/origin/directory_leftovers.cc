// What publishers that were killed left in a directory: files of `.incoming`.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/encoding.h"
#include "base/random.h"
#include "origin/directory_origin.h"
#include "origin/open_file.h"
#include "sys/file.h"

namespace dsec::origin {

namespace {

std::chrono::nanoseconds modified(const struct stat& st) { return std::chrono::seconds(st.st_mtim.tv_sec) + std::chrono::nanoseconds(st.st_mtim.tv_nsec); }

// By the clock that stamps files there: that of a server, or of this machine.
Result<std::chrono::nanoseconds> time_of_store(const std::string& folder) {
  SystemRandom random;
  const std::string path = folder + "/clock." + to_hex(random.bytes(16));
  const sys::Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd) return store_error("make " + path, errno);
  struct stat st{};
  const bool told = ::fstat(fd.get(), &st) == 0;
  const int failure = errno;
  ::unlink(path.c_str());
  if (!told) return store_error("look at " + path, failure);
  return modified(st);
}

// "<object's file name>.<digits>"; files of earlier versions say nothing.
std::optional<ObjectName> object_of(const std::string& file) {
  const std::size_t dot = file.rfind('.');
  if (dot == std::string::npos || dot < 2) return std::nullopt;
  const Result<ObjectName> name = parse_object_path(file.substr(0, 2) + "/" + file.substr(0, dot));
  return name.ok() ? std::optional(*name) : std::nullopt;
}

Result<std::vector<Leftover>> files_in(const std::string& folder) {
  const Result<std::vector<std::string>> names = sys::list_directory(folder);
  if (!names.ok() && names.error().code() == ErrorCode::kNotFound) return std::vector<Leftover>();
  if (!names.ok()) return store_error("list " + folder, names.error().error_number());
  std::vector<Leftover> out;
  if (names->empty()) return out;
  DSEC_ASSIGN(const std::chrono::nanoseconds now, time_of_store(folder));
  for (const std::string& name : *names) {
    struct stat st{};
    if (::lstat((folder + "/" + name).c_str(), &st) != 0) {
      if (errno == ENOENT) continue;  // it has its name now, or its publisher took it away
      return store_error("look at " + folder + "/" + name, errno);
    }
    if (!S_ISREG(st.st_mode)) continue;
    out.push_back({.id = name, .of = object_of(name), .age = std::chrono::duration_cast<Duration>(now - modified(st)), .bytes = static_cast<std::uint64_t>(st.st_size)});
    if (out.size() == Origin::kMaxLeftovers) break;
  }
  return out;
}

}  // namespace

Result<std::vector<Leftover>> DirectoryOrigin::leftovers(Deadline deadline) {
  DSEC_TRY(check_place(deadline));
  return threads_->call<std::vector<Leftover>>([folder = directory_ + kIncoming] { return files_in(folder); }, deadline);
}

Result<void> DirectoryOrigin::remove_leftover(const Leftover& leftover, Deadline deadline) {
  if (leftover.id.empty() || leftover.id.starts_with('.') || leftover.id.find('/') != std::string::npos) return invalid_argument("not a leftover of this store: " + leftover.id);
  DSEC_TRY(check_place(deadline));
  const auto unlink = [path = directory_ + kIncoming + "/" + leftover.id]() -> Result<bool> {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return store_error("remove " + path, errno);
    return true;
  };
  const Result<bool> done = threads_->call<bool>(unlink, deadline);
  if (!done.ok()) return done.error();
  return {};
}

}  // namespace dsec::origin
