#include "image/tar_unpacker.h"

#include <archive.h>
#include <archive_entry.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "erofs/attributes.h"
#include "image/clean_path.h"

namespace dsec::image {

namespace {

constexpr std::size_t kBlock = 256 << 10;
constexpr std::uint32_t kMappedIds = 65536;
constexpr std::uint32_t kNobody = 65534;
constexpr std::size_t kAttributeLimit = 32;
constexpr std::string_view kWhiteout = ".wh.";
constexpr std::string_view kOpaque = ".wh..wh..opq";

struct FreeReader {
  void operator()(archive* reader) const { archive_read_free(reader); }
};
using Reader = std::unique_ptr<archive, FreeReader>;

Error reader_error(archive* reader, std::string_view doing) {
  const char* words = archive_error_string(reader);
  Error error = invalid_argument(words == nullptr ? "not a tar archive" : words);
  if (archive_errno(reader) == ENOMEM) error = Error(ErrorCode::kTooLarge, "the archive needs too much memory to read");
  error.add_context(doing);
  return error;
}

}  // namespace

TarUnpacker::TarUnpacker(erofs::EntrySink& tree, std::string at, UnpackLimits limits, Progress progress)
    : tree_(tree), at_(std::move(at)), limits_(limits), progress_(std::move(progress)) {}

Result<void> TarUnpacker::count_entry() {
  counts_.entries++;
  if (counts_.entries + tree_.implied_directories() > limits_.max_entries) {
    return Error(ErrorCode::kTooLarge, "the archive holds more than " + std::to_string(limits_.max_entries) + " entries");
  }
  return {};
}

Result<void> TarUnpacker::unpack(int input) { return unpack(input, Whiteouts::kIgnore); }

Result<void> TarUnpacker::unpack_layer(int input) {
  DSEC_CHECK(at_.empty());
  brought_.clear();
  hidden_.clear();
  return unpack(input, Whiteouts::kKeep);
}

Result<void> TarUnpacker::unpack(int input, Whiteouts whiteouts) {
  const Reader reader(archive_read_new());
  if (!reader) return Error(ErrorCode::kInternal, "cannot make an archive reader");
  archive_read_support_format_tar(reader.get());
  archive_read_support_filter_gzip(reader.get());
  archive_read_support_filter_zstd(reader.get());
  archive_read_support_filter_xz(reader.get());
  if (archive_read_open_fd(reader.get(), input, kBlock) != ARCHIVE_OK) return reader_error(reader.get(), "open the archive");
  for (;;) {
    const la_int64_t before = archive_filter_bytes(reader.get(), 0);
    archive_entry* entry = nullptr;
    const int status = archive_read_next_header(reader.get(), &entry);
    if (status == ARCHIVE_EOF) {
      // A stream that was cut between two entries lacks the two zero blocks.
      if (archive_filter_bytes(reader.get(), 0) - before < 512) return invalid_argument("the archive ends early: it has no end mark");
      return {};
    }
    if (status < ARCHIVE_WARN) return reader_error(reader.get(), "read the archive");
    // One compression around the tar; archives packed many times over are bombs.
    if (archive_filter_count(reader.get()) > 2) return invalid_argument("the archive is compressed more than once");
    DSEC_TRY(take_entry(reader.get(), entry, whiteouts));
    progress_(static_cast<std::uint64_t>(archive_filter_bytes(reader.get(), -1)));
  }
}

erofs::EntryMeta TarUnpacker::meta_of(archive_entry* entry) {
  erofs::EntryMeta meta;
  meta.mode = archive_entry_perm(entry) & 07777;
  const la_int64_t uid = archive_entry_uid(entry);
  const la_int64_t gid = archive_entry_gid(entry);
  meta.uid = uid >= 0 && uid < kMappedIds ? static_cast<std::uint32_t>(uid) : kNobody;
  meta.gid = gid >= 0 && gid < kMappedIds ? static_cast<std::uint32_t>(gid) : kNobody;
  if (meta.uid != uid || meta.gid != gid) {
    counts_.owners_replaced++;
    if (meta.uid != uid) meta.mode &= ~static_cast<mode_t>(S_ISUID);
    if (meta.gid != gid) meta.mode &= ~static_cast<mode_t>(S_ISGID);
  }
  // EROFS holds unsigned seconds; what is before 1970 or past 2242 is a lie.
  meta.mtime_seconds = std::clamp<std::int64_t>(archive_entry_mtime(entry), 0, (1LL << 33) - 1);
  meta.mtime_nanoseconds = std::clamp<std::int64_t>(archive_entry_mtime_nsec(entry), 0, 999'999'999);
  const char* name = nullptr;
  const void* value = nullptr;
  std::size_t size = 0;
  archive_entry_xattr_reset(entry);
  while (archive_entry_xattr_next(entry, &name, &value, &size) == ARCHIVE_OK) {
    if (name == nullptr || !erofs::attribute_allowed(name) || meta.attributes.size() >= kAttributeLimit) {
      counts_.attributes_dropped++;
      continue;
    }
    meta.attributes.emplace_back(name, std::string(static_cast<const char*>(value), size));
  }
  std::sort(meta.attributes.begin(), meta.attributes.end());
  return meta;
}

Result<void> TarUnpacker::take_entry(archive* reader, archive_entry* entry, Whiteouts whiteouts) {
  DSEC_TRY(count_entry());
  const char* raw = archive_entry_pathname(entry);
  if (raw == nullptr) return invalid_argument("an entry's name cannot be read");
  Result<std::string> cleaned = clean_path(raw);
  if (!cleaned.ok()) return std::move(cleaned).within(tame(raw, 200)).error();
  std::string path = std::move(cleaned).value();
  const auto type = archive_entry_filetype(entry);
  const char* link_to = archive_entry_hardlink(entry);
  const bool root = path.empty();
  if (root && (type != AE_IFDIR || link_to != nullptr)) return invalid_argument("the archive's root is no directory");

  if (whiteouts == Whiteouts::kKeep && !root) {
    const std::string name = path.substr(path.rfind('/') + 1);
    if (name.starts_with(kWhiteout)) return take_whiteout(path);
    note_path(path, type == AE_IFDIR && link_to == nullptr);
  }
  if (!at_.empty()) path = root ? at_ : at_ + "/" + path;

  const erofs::EntryMeta meta = meta_of(entry);
  if (link_to != nullptr) {
    DSEC_ASSIGN(std::string target, clean_path(link_to).within(path + ": a hard link to " + tame(link_to, 200)));
    if (!at_.empty()) target = target.empty() ? at_ : at_ + "/" + target;
    return tree_.make_hard_link(path, target);
  }
  newest_seconds_ = std::max(newest_seconds_, meta.mtime_seconds + (meta.mtime_nanoseconds != 0 ? 1 : 0));
  switch (type) {
    case AE_IFREG: return take_file(reader, entry, path, meta);
    case AE_IFDIR: return path.empty() && whiteouts == Whiteouts::kIgnore ? Result<void>() : tree_.make_directory(path, meta);
    case AE_IFLNK: {
      const char* target = archive_entry_symlink(entry);
      if (target == nullptr) return invalid_argument(path + ": a symbolic link without a target");
      return tree_.make_symlink(path, target, meta);
    }
    case AE_IFIFO: return tree_.make_fifo(path, meta);
    case AE_IFCHR:
    case AE_IFBLK:
    case AE_IFSOCK: counts_.devices_dropped++; return {};
    default: return invalid_argument(path + ": an entry of unknown type");
  }
}

Result<void> TarUnpacker::take_file(archive* reader, archive_entry* entry, const std::string& path, const erofs::EntryMeta& meta) {
  if (!archive_entry_size_is_set(entry) || archive_entry_size(entry) < 0) return invalid_argument(path + ": a file without a size");
  const auto size = static_cast<std::uint64_t>(archive_entry_size(entry));
  // Holes count: whoever copies the tree writes them out.
  if (size > limits_.max_bytes - counts_.content_bytes) {
    return Error(ErrorCode::kTooLarge, "the archive unpacks to more than " + std::to_string(limits_.max_bytes) + " bytes");
  }
  counts_.content_bytes += size;
  DSEC_TRY(tree_.begin_file(path, meta, {.bytes = size, .sparse = archive_entry_sparse_reset(entry) > 0}));
  DSEC_TRY(take_content(reader, path, size));
  return tree_.finish_file().within(path);
}

Result<void> TarUnpacker::take_content(archive* reader, const std::string& path, std::uint64_t size) {
  std::uint64_t end = 0;
  for (;;) {
    const void* data = nullptr;
    std::size_t length = 0;
    la_int64_t offset = 0;
    const int status = archive_read_data_block(reader, &data, &length, &offset);
    if (status == ARCHIVE_EOF) break;
    if (status < ARCHIVE_WARN) return reader_error(reader, path);
    if (length == 0) continue;
    if (offset < 0 || static_cast<std::uint64_t>(offset) < end || length > size || static_cast<std::uint64_t>(offset) > size - length) {
      return invalid_argument(path + ": data outside the file's size");
    }
    if (static_cast<std::uint64_t>(offset) != end) DSEC_TRY(tree_.skip(static_cast<std::uint64_t>(offset) - end).within(path));
    DSEC_TRY(tree_.write(std::string_view(static_cast<const char*>(data), length)).within(path));
    end = static_cast<std::uint64_t>(offset) + length;
    progress_(static_cast<std::uint64_t>(archive_filter_bytes(reader, -1)));
  }
  if (end != size) DSEC_TRY(tree_.skip(size - end).within(path));
  return {};
}

Result<void> TarUnpacker::take_whiteout(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "" : path.substr(0, slash);
  const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  if (name == kOpaque) return hide_below(directory);
  if (name.starts_with(".wh..wh.")) return {};  // aufs's own book-keeping
  const std::string target_name = name.substr(kWhiteout.size());
  if (target_name.empty() || target_name == "." || target_name == "..") return invalid_argument(path + ": a whiteout of nothing");
  const std::string target = directory.empty() ? target_name : directory + "/" + target_name;
  if (const auto own = brought_.find(target); own != brought_.end()) return own->second ? hide_below(target) : Result<void>();
  if (is_hidden(target)) return {};
  hidden_.insert(target);
  Result<void> done = tree_.make_whiteout(target);
  // Below what is no directory nothing can be hidden.
  return !done.ok() && done.error().error_number() == ENOTDIR ? Result<void>() : done;
}

Result<void> TarUnpacker::hide_below(const std::string& directory) {
  if (is_hidden(directory)) return {};
  Result<void> done = tree_.make_opaque(directory);
  return !done.ok() && done.error().error_number() == ENOTDIR ? Result<void>() : done;
}

// With a directory above it that this layer took away and did not bring again.
bool TarUnpacker::is_hidden(const std::string& path) const {
  for (std::size_t end = path.size(); end != std::string::npos && end != 0; end = path.rfind('/', end - 1)) {
    const std::string above = path.substr(0, end);
    if (hidden_.contains(above) && !brought_.contains(above)) return true;
  }
  return false;
}

void TarUnpacker::note_path(const std::string& path, bool directory) {
  brought_[path] = directory;
  for (std::size_t end = path.rfind('/'); end != std::string::npos; end = path.rfind('/', end - 1)) {
    if (!brought_.emplace(path.substr(0, end), true).second) break;
  }
}

}  // namespace dsec::image
