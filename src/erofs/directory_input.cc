#include "erofs/directory_input.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "erofs/host_attributes.h"
#include "erofs/path_patterns.h"
#include "sys/mounts.h"

namespace dsec::erofs {

namespace {

using Form = DirectoryInputOptions::Form;

constexpr std::size_t kPieceBytes = 256 << 10;

Error changed() { return Error(ErrorCode::kConflict, "it changed while it was read"); }

Result<sys::Fd> open_below(int directory, const std::string& name, int flags) {
  sys::Fd fd(sys::open_beneath(directory, name.empty() ? "." : name.c_str(), flags));
  if (fd.get() >= 0) return fd;
  if (errno == ENOENT || errno == ELOOP || errno == ENOTDIR) return changed();
  if (errno == EXDEV) return invalid_argument("another file system is mounted here");
  return errno_error("open", errno);
}

Result<struct stat> stat_of(int fd) {
  struct stat st{};
  if (::fstat(fd, &st) != 0) return errno_error("stat", errno);
  return st;
}

// Sorted.
Result<std::vector<std::string>> names_in(sys::Fd directory) {
  DIR* const stream = ::fdopendir(directory.get());
  if (stream == nullptr) return errno_error("read the directory", errno);
  directory.release();
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(stream)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  const int failed = errno;
  ::closedir(stream);
  if (failed != 0) return errno_error("read the directory", failed);
  std::sort(names.begin(), names.end());
  return names;
}

// What goes to the writer and the watch: at once, or when all has been read.
class Outlet {
 public:
  using Step = std::function<Result<void>(Writer&, ContentWatch*)>;

  Outlet(Writer& writer, ContentWatch* watch, std::span<char> hold) : writer_(writer), watch_(watch), left_(hold), holds_(!hold.empty()) {}

  // What it captures is its own: the caller's is gone when it is called.
  Result<void> give(Step step) {
    if (!holds_) return step(writer_, watch_);
    held_.push_back(std::move(step));
    return {};
  }
  // Room for a piece of content until it was let go; none where nothing is held, or no more.
  Result<std::span<char>> room(std::size_t bytes) {
    if (holds_ && bytes > left_.size()) DSEC_TRY(let_go());
    if (!holds_) return std::span<char>();
    const std::span<char> out = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return out;
  }
  Result<void> let_go() {
    holds_ = false;
    for (const Step& step : std::exchange(held_, {})) DSEC_TRY(step(writer_, watch_));
    return {};
  }
  bool watched() const { return watch_ != nullptr; }

 private:
  Writer& writer_;
  ContentWatch* const watch_;
  std::span<char> left_;
  bool holds_;
  std::vector<Step> held_;
};

class Walk {
 public:
  Walk(Writer& writer, int root, const DirectoryInputOptions& options) : out_(writer, options.watch, options.hold), root_(root), options_(options), piece_(kPieceBytes, '\0') {}

  Result<DirectoryInputCounts> run() {
    open_ = {""};
    while (!open_.empty()) {
      const std::string path = std::move(open_.back());
      open_.pop_back();
      DSEC_TRY(take_directory(path).within(path.empty() ? "/" : path));
    }
    if (options_.on_read) options_.on_read(counts_.content_bytes);
    DSEC_TRY(out_.let_go());
    return counts_;
  }

 private:
  Result<void> take_directory(const std::string& path) {
    DSEC_ASSIGN(sys::Fd directory, open_below(root_, path, O_RDONLY | O_DIRECTORY));
    DSEC_ASSIGN(const struct stat st, stat_of(directory.get()));
    DSEC_ASSIGN(const HostEntry entry, describe(directory.get(), st, options_, counts_));
    DSEC_TRY(out_.give([path, entry](Writer& writer, ContentWatch* watch) -> Result<void> {
      DSEC_TRY(writer.make_directory(path, entry.meta));
      if (entry.opaque) DSEC_TRY(writer.make_opaque(path));
      show_attributes(watch, path, entry.meta);
      return {};
    }));
    DSEC_ASSIGN(sys::Fd to_list, open_below(directory.get(), "", O_RDONLY | O_DIRECTORY));
    DSEC_ASSIGN(const std::vector<std::string> names, names_in(std::move(to_list)));
    std::vector<std::string> below;
    for (const std::string& name : names) {
      const std::string child = path.empty() ? name : path + "/" + name;
      if (options_.cancelled != nullptr && options_.cancelled->load()) return Error(ErrorCode::kCancelled, "the import was cancelled");
      if (matches_any(options_.exclude, child)) {
        counts_.excluded++;
        continue;
      }
      DSEC_TRY(show_text(child, name));
      DSEC_ASSIGN(const bool is_directory, take_entry(directory.get(), name, child).within(name));
      if (is_directory) below.push_back(child);
    }
    open_.insert(open_.end(), below.rbegin(), below.rend());
    return {};
  }

  // True for a directory, which is taken later.
  Result<bool> take_entry(int directory, const std::string& name, const std::string& path) {
    if (++counts_.entries > options_.max_entries) return Error(ErrorCode::kTooLarge, "the tree holds more than " + std::to_string(options_.max_entries) + " entries");
    struct stat st{};
    if (::fstatat(directory, name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return changed();
    if (S_ISDIR(st.st_mode)) return true;
    if (S_ISSOCK(st.st_mode)) {
      counts_.sockets_dropped++;
      return false;
    }
    if (S_ISCHR(st.st_mode) && st.st_rdev == ::makedev(0, 0) && options_.form == Form::kOverlayUpper) {
      counts_.whiteouts++;
      DSEC_TRY(out_.give([path](Writer& writer, ContentWatch*) { return writer.make_whiteout(path); }));
      return false;
    }
    if (S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode)) return Error(ErrorCode::kUnsupported, "a device node");
    if (st.st_nlink > 1) {
      const auto [known, first] = links_.emplace(std::pair(st.st_dev, st.st_ino), path);
      if (!first) {
        DSEC_TRY(out_.give([path, first_name = known->second](Writer& writer, ContentWatch*) { return writer.make_hard_link(path, first_name); }));
        return false;
      }
    }
    DSEC_TRY(S_ISREG(st.st_mode) ? take_file(directory, name, path, st) : take_special(directory, name, path, st));
    return false;
  }

  Result<void> take_special(int directory, const std::string& name, const std::string& path, const struct stat& st) {
    DSEC_ASSIGN(const EntryMeta meta, meta_of(st, options_.ids));
    if (S_ISFIFO(st.st_mode)) return out_.give([path, meta](Writer& writer, ContentWatch*) { return writer.make_fifo(path, meta); });
    std::string target(PATH_MAX, '\0');
    const ssize_t length = ::readlinkat(directory, name.c_str(), target.data(), target.size());
    if (length < 0) return changed();
    target.resize(static_cast<std::size_t>(length));
    DSEC_TRY(show_text(path, target));
    return out_.give([path, target, meta](Writer& writer, ContentWatch*) { return writer.make_symlink(path, target, meta); });
  }

  Result<void> take_file(int directory, const std::string& name, const std::string& path, const struct stat& seen) {
    // Non-blocking: what has taken the name of the file may be a fifo.
    DSEC_ASSIGN(const sys::Fd file, open_below(directory, name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW));
    DSEC_ASSIGN(const struct stat st, stat_of(file.get()));
    if (!S_ISREG(st.st_mode) || st.st_ino != seen.st_ino || st.st_dev != seen.st_dev) return changed();
    DSEC_ASSIGN(const HostEntry entry, describe(file.get(), st, options_, counts_));
    if (entry.opaque) return Error(ErrorCode::kUnsupported, "an opaque mark of an unknown kind");
    const auto size = static_cast<std::uint64_t>(st.st_size);
    if (size > options_.max_bytes - counts_.content_bytes) return Error(ErrorCode::kTooLarge, "the tree holds more than " + std::to_string(options_.max_bytes) + " bytes");
    counts_.content_bytes += size;
    const off_t hole = size == 0 ? 0 : ::lseek(file.get(), 0, SEEK_HOLE);
    const bool sparse = hole >= 0 && static_cast<std::uint64_t>(hole) < size;
    DSEC_TRY(out_.give([path, entry, size, sparse](Writer& writer, ContentWatch* watch) -> Result<void> {
      DSEC_TRY(writer.begin_file(path, entry.meta, {.bytes = size, .sparse = sparse}));
      show_attributes(watch, path, entry.meta);
      if (watch != nullptr) watch->begin(path);
      return {};
    }));
    DSEC_TRY(sparse ? take_sparse(file.get(), size) : take_range(file.get(), 0, size));
    DSEC_TRY(out_.give([](Writer& writer, ContentWatch*) { return writer.finish_file(); }));
    if (options_.on_progress) options_.on_progress(counts_.content_bytes);
    return {};
  }

  static void show_attributes(ContentWatch* watch, const std::string& path, const EntryMeta& meta) {
    if (watch == nullptr) return;
    for (const auto& [name, value] : meta.attributes) watch->text(path, value);
  }

  Result<void> show_text(const std::string& path, const std::string& text) {
    if (!out_.watched()) return {};
    return out_.give([path, text](Writer&, ContentWatch* watch) -> Result<void> {
      watch->text(path, text);
      return {};
    });
  }

  Result<void> take_sparse(int file, std::uint64_t size) {
    for (std::uint64_t at = 0; at < size;) {
      const off_t data = ::lseek(file, static_cast<off_t>(at), SEEK_DATA);
      if (data < 0 && errno != ENXIO) return errno_error("look for data", errno);
      const std::uint64_t begin = data < 0 ? size : std::min(static_cast<std::uint64_t>(data), size);
      DSEC_TRY(out_.give([bytes = begin - at](Writer& writer, ContentWatch* watch) -> Result<void> {
        DSEC_TRY(writer.skip(bytes));
        if (watch != nullptr && bytes != 0) watch->hole();
        return {};
      }));
      if (begin == size) break;
      const off_t hole = ::lseek(file, data, SEEK_HOLE);
      if (hole < 0) return changed();
      const std::uint64_t end = std::min(static_cast<std::uint64_t>(hole), size);
      DSEC_TRY(take_range(file, begin, end));
      at = end;
    }
    return {};
  }

  Result<void> take_range(int file, std::uint64_t begin, std::uint64_t end) {
    while (begin < end) {
      const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, end - begin));
      DSEC_ASSIGN(std::span<char> piece, out_.room(wanted));
      if (piece.empty()) piece = std::span(piece_).first(wanted);
      const ssize_t got = ::pread(file, piece.data(), wanted, static_cast<off_t>(begin));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return errno_error("read", errno);
      if (got == 0) return changed();
      const auto length = static_cast<std::size_t>(got);
      DSEC_TRY(out_.give([content = std::string_view(piece.data(), length)](Writer& writer, ContentWatch* watch) -> Result<void> {
        DSEC_TRY(writer.write(content));
        if (watch != nullptr) watch->bytes(content);
        return {};
      }));
      begin += length;
    }
    return {};
  }

  Outlet out_;
  const int root_;
  const DirectoryInputOptions& options_;
  DirectoryInputCounts counts_;
  std::string piece_;  // for what is not held
  std::vector<std::string> open_;                           // directories to be taken, the next one last
  std::map<std::pair<dev_t, ino_t>, std::string> links_;    // of files with several names, by the first
};

}  // namespace

Result<DirectoryInputCounts> add_directory(Writer& writer, int root, const DirectoryInputOptions& options) { return Walk(writer, root, options).run(); }

}  // namespace dsec::erofs
