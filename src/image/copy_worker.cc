#include "image/copy_worker.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "erofs/digest.h"
#include "erofs/entry_copy.h"
#include "erofs/layer_merge.h"
#include "erofs/tree_walk.h"
#include "image/clean_path.h"
#include "image/copy_spec.h"
#include "image/passed_images.h"
#include "image/tar_unpacker.h"
#include "image/worker_layer.h"
#include "sys/file.h"

namespace dsec::image {

namespace {

using erofs::LayerStack;

constexpr std::size_t kSpecLimit = 32 << 20;
constexpr std::size_t kAccountsLimit = 4 << 20;
constexpr std::size_t kMostMatches = 100'000;
constexpr std::uint32_t kMappedIds = 65536;

struct FreeReader {
  void operator()(archive* reader) const { archive_read_free(reader); }
};

std::string digest_of(std::string_view bytes) {
  erofs::Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }
std::string joined(const std::string& directory, const std::string& name) { return directory.empty() || name.empty() ? directory + name : directory + "/" + name; }

std::optional<std::uint32_t> number_of(std::string_view text) {
  std::uint32_t out = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (text.empty() || failed != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return out;
}

// The field'th number of the line that begins with `name`, in passwd or group.
std::optional<std::uint32_t> find_account(std::string_view accounts, std::string_view name, int field) {
  while (!accounts.empty()) {
    std::string_view line = accounts.substr(0, accounts.find('\n'));
    accounts.remove_prefix(std::min(accounts.size(), line.size() + 1));
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') continue;
    for (int i = 0; i < field && !line.empty(); i++) line.remove_prefix(std::min(line.size(), line.find(':') == std::string_view::npos ? line.size() : line.find(':') + 1));
    return number_of(line.substr(0, line.find(':')));
  }
  return std::nullopt;
}

class CopyRun {
 public:
  CopyRun(const ImportRequest& request, const CopySpec& spec, LayerStack& below, erofs::Reader* source, erofs::Writer& writer)
      : request_(request), spec_(spec), below_(below), source_(source), writer_(writer) {}

  Result<void> run() {
    DSEC_ASSIGN(destination_, clean_path(spec_.destination.substr(1).empty() ? "." : spec_.destination.substr(1)).within("destination"));
    DSEC_TRY(read_owner());
    DSEC_ASSIGN(destination_, through_links(destination_));
    DSEC_ASSIGN(const auto there, below_.find(destination_, LayerStack::LastLink::kFollow));
    if (spec_.directory == CopySpec::Directory::kMake) return make_directory(there);
    is_directory_ = spec_.destination.ends_with('/') || (there && there->node.is_directory());
    if (spec_.destination.ends_with('/') && there && !there->node.is_directory()) return invalid_argument("the destination /" + destination_ + " is no directory");
    if (source_ != nullptr) DSEC_TRY(copy_sources());
    DSEC_TRY(write_inline_files());
    for (const InlineLink& link : spec_.links) {
      DSEC_ASSIGN(const std::string path, clean_path(link.path.substr(1)).within("a link"));
      DSEC_TRY(writer_.make_symlink(path, link.target, {.mode = 0777, .attributes = {}}));
      entries_++;
      noted_ += "link " + std::to_string(path.size()) + ":" + path + " " + link.target + "\n";
    }
    // A directory that appears by the copy belongs to who the files are given to.
    if (!there && is_directory_ && !destination_.empty() && !spec_.owner.empty()) {
      const erofs::EntryMeta meta{.mode = 0755, .uid = *rules_.uid, .gid = *rules_.gid, .mtime_seconds = newest_, .attributes = {}};
      DSEC_TRY(writer_.make_directory(destination_, meta));
    }
    return {};
  }

  ImportResult result() const {
    ImportResult out;
    out.counts.content_bytes = content_bytes_;
    out.counts.entries = entries_;
    out.facts["digest"] = digest_of(noted_);
    if (entries_ == 0) out.facts["empty"] = "yes";
    return out;
  }
  std::int64_t newest_seconds() const { return newest_; }

 private:
  struct Source {
    std::string path;
    erofs::StoredInode node;
  };

  // As far as it is there, where the image's links lead.
  Result<std::string> through_links(const std::string& path) {
    for (std::size_t end = path.size(); end != 0 && end != std::string::npos; end = path.rfind('/', end - 1)) {
      DSEC_ASSIGN(const auto there, below_.find(path.substr(0, end), LayerStack::LastLink::kFollow));
      if (!there) continue;
      if (end < path.size() && !there->node.is_directory()) return invalid_argument("/" + path.substr(0, end) + " is no directory");
      return joined(there->path, path.substr(std::min(path.size(), end + 1)));
    }
    return path;
  }

  Result<void> make_directory(const std::optional<LayerStack::Found>& there) {
    if (there && !there->node.is_directory()) return invalid_argument("/" + destination_ + " is no directory");
    if (there || destination_.empty()) return {};
    entries_ = 1;
    noted_ += "directory " + destination_;
    return writer_.make_directory(destination_, {.mode = 0755, .uid = rules_.uid.value_or(0), .gid = rules_.gid.value_or(0), .attributes = {}});
  }

  Result<std::uint32_t> id_of(const std::string& text, const char* file, int field) {
    std::optional<std::uint32_t> id = number_of(text);
    if (!id) {
      DSEC_ASSIGN(const auto accounts, below_.read_file(file, kAccountsLimit));
      if (accounts) id = find_account(*accounts, text, field);
      if (!id) return invalid_argument("--chown: the image's /" + std::string(file) + " has no " + tame(text, 64));
    }
    if (*id >= kMappedIds) return invalid_argument("--chown: ids end at 65535");
    return *id;
  }

  Result<void> read_owner() {
    rules_.mode = spec_.mode;
    rules_.max_bytes = request_.max_bytes;
    rules_.max_entries = request_.max_entries;
    if (spec_.owner.empty()) {
      if (!spec_.keep_owners) rules_.uid = rules_.gid = 0;
      return {};
    }
    const std::size_t colon = spec_.owner.find(':');
    const std::string user = spec_.owner.substr(0, colon);
    DSEC_ASSIGN(rules_.uid, id_of(user, "etc/passwd", 2));
    if (colon != std::string::npos) {
      DSEC_ASSIGN(rules_.gid, id_of(spec_.owner.substr(colon + 1), "etc/group", 2));
      return {};
    }
    // The user's own group by name; the same number for one given by number.
    if (number_of(user)) {
      rules_.gid = rules_.uid;
      return {};
    }
    DSEC_ASSIGN(rules_.gid, id_of(user, "etc/passwd", 3));
    return {};
  }

  // Every entry of the source that a pattern names, through links of the source.
  Result<std::vector<Source>> matches(const std::string& pattern) {
    LayerStack source({source_});
    const bool plain = pattern.find_first_of("*?[\\") == std::string::npos;
    std::vector<std::string> found = {""};
    std::string rest = pattern;
    while (!plain && !rest.empty()) {
      const std::string part = rest.substr(0, rest.find('/'));
      rest.erase(0, std::min(rest.size(), part.size() + 1));
      if (part.empty() || part == ".") continue;
      std::vector<std::string> next;
      for (const std::string& directory : found) {
        DSEC_ASSIGN(const auto at, source.find(directory, LayerStack::LastLink::kFollow));
        if (!at || !at->node.is_directory()) continue;
        DSEC_ASSIGN(erofs::TreeWalk walk, erofs::TreeWalk::begin(*source_, "/" + at->path, erofs::Depth::kChildren));
        for (;;) {
          DSEC_ASSIGN(const auto entry, walk.next());
          if (!entry) break;
          const std::string name = name_of(entry->path);
          if (::fnmatch(part.c_str(), name.c_str(), 0) != 0) continue;
          next.push_back(joined(directory, name));
          if (next.size() > kMostMatches) return Error(ErrorCode::kTooLarge, tame(pattern, 200) + " names more than 100000 files");
        }
      }
      found = std::move(next);
    }
    if (plain) found = {pattern};
    std::vector<Source> out;
    for (const std::string& path : found) {
      DSEC_ASSIGN(const auto at, source.find(path, LayerStack::LastLink::kFollow));
      if (!at && plain) return Error(ErrorCode::kNotFound, "there is no " + tame(pattern, 300) + " to copy");
      if (at) out.push_back({path, at->node});
    }
    if (out.empty()) return Error(ErrorCode::kNotFound, "nothing to copy is called " + tame(pattern, 300));
    return out;
  }

  Result<void> copy_sources() {
    std::vector<Source> sources;
    for (const std::string& pattern : spec_.sources) {
      std::string relative = pattern;
      while (relative.starts_with('/')) relative.erase(0, 1);
      DSEC_ASSIGN(relative, clean_path(relative.empty() ? "." : relative).within(tame(pattern, 200)));
      DSEC_ASSIGN(std::vector<Source> some, matches(relative));
      sources.insert(sources.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
    }
    if (sources.size() + spec_.files.size() > 1 && !is_directory_) return invalid_argument("several files are copied: the destination has to be a directory and to end with /");
    erofs::EntryCopy copy(*source_, below_, writer_, rules_);
    for (const Source& source : sources) DSEC_TRY(copy_one(copy, source));
    DSEC_TRY(copy.place_contents());
    noted_ += copy.digest();
    entries_ += copy.entries();
    content_bytes_ += copy.content_bytes();
    newest_ = std::max(newest_, copy.newest_seconds());
    return {};
  }

  Result<void> copy_one(erofs::EntryCopy& copy, const Source& source) {
    if (source.node.is_directory()) {
      is_directory_ = true;
      LayerStack stack({source_});
      DSEC_ASSIGN(const auto at, stack.find(source.path, LayerStack::LastLink::kFollow));
      noted_ += "into " + destination_ + "\n";
      if (entries_ == 0 && !destination_.empty()) {
        // An empty directory's copy is a directory all the same.
        DSEC_ASSIGN(const auto there, below_.find(destination_, LayerStack::LastLink::kFollow));
        if (!there) {
          DSEC_TRY(writer_.ensure_directory(destination_, 0755));
          entries_++;
        }
      }
      return copy.add_contents(at->path, destination_);
    }
    if (spec_.unpack && source.node.is_file()) {
      DSEC_ASSIGN(const bool unpacked, unpack(source));
      if (unpacked) return {};
    }
    return copy.add_file(source.path, source.node, is_directory_ ? joined(destination_, name_of(source.path)) : destination_);
  }

  Result<void> write_inline_files() {
    for (const InlineFile& file : spec_.files) {
      const std::string to = is_directory_ ? joined(destination_, file.name) : destination_;
      DSEC_ASSIGN(const auto there, below_.find(to, LayerStack::LastLink::kKeep));
      if (there && there->node.is_directory()) return Error(ErrorCode::kConflict, "a file is copied to /" + to + ", which is a directory");
      const erofs::EntryMeta meta{.mode = rules_.mode.value_or(0644), .uid = rules_.uid.value_or(0), .gid = rules_.gid.value_or(0), .attributes = {}};
      DSEC_TRY(writer_.begin_file(to, meta, {.bytes = file.content.size()}));
      DSEC_TRY(writer_.write(file.content));
      DSEC_TRY(writer_.finish_file());
      entries_++;
      content_bytes_ += file.content.size();
      noted_ += "file " + std::to_string(to.size()) + ":" + to + " " + std::to_string(meta.mode) + " " + std::to_string(meta.uid) + ":" + std::to_string(meta.gid) + " " + digest_of(file.content) + "\n";
    }
    return {};
  }

  // False for what is no archive: it is copied as it is.
  Result<bool> unpack(const Source& source) {
    DSEC_ASSIGN(const sys::Fd file, sys::open_at(AT_FDCWD, "/work/archive-" + std::to_string(archives_++), O_RDWR | O_CREAT | O_EXCL, 0600));
    erofs::Sha256 hash;
    std::string buffer(1 << 20, '\0');
    for (std::uint64_t at = 0; at < source.node.size;) {
      DSEC_ASSIGN(const std::size_t got, source_->read(source.node, at, std::span(buffer.data(), buffer.size())));
      if (got == 0) return Error(ErrorCode::kDataFault, "a file ends early");
      DSEC_TRY(sys::write_all(file.get(), std::string_view(buffer.data(), got)));
      if (at == 0 && buffer.starts_with("BZh")) return invalid_argument(source.path + ": ADD unpacks tar, gzip, xz and zstd, not bzip2");
      hash.update(std::string_view(buffer.data(), got));
      at += got;
    }
    if (!is_tar(file.get())) return false;
    if (::lseek(file.get(), 0, SEEK_SET) != 0) return errno_error("read the archive", errno);
    is_directory_ = true;
    TarUnpacker unpacker(writer_, destination_, {request_.max_bytes, request_.max_entries}, [](std::uint64_t) {});
    DSEC_TRY(unpacker.unpack(file.get()).within(source.path));
    entries_ += unpacker.counts().entries;
    content_bytes_ += unpacker.counts().content_bytes;
    newest_ = std::max(newest_, unpacker.newest_seconds());
    noted_ += "unpacked into " + destination_ + " " + hash.hex() + "\n";
    return true;
  }

  static bool is_tar(int file) {
    if (::lseek(file, 0, SEEK_SET) != 0) return false;
    const std::unique_ptr<archive, FreeReader> reader(archive_read_new());
    if (!reader) return false;
    archive_read_support_format_tar(reader.get());
    archive_read_support_filter_gzip(reader.get());
    archive_read_support_filter_zstd(reader.get());
    archive_read_support_filter_xz(reader.get());
    archive_entry* entry = nullptr;
    return archive_read_open_fd(reader.get(), file, 1 << 18) == ARCHIVE_OK && archive_read_next_header(reader.get(), &entry) >= ARCHIVE_WARN &&
           archive_format(reader.get()) != 0 && entry != nullptr;
  }

  const ImportRequest& request_;
  const CopySpec& spec_;
  LayerStack& below_;
  erofs::Reader* source_;
  erofs::Writer& writer_;
  erofs::CopyRules rules_;
  std::string destination_;
  bool is_directory_ = false;
  std::string noted_;
  std::uint64_t entries_ = 0;
  std::uint64_t content_bytes_ = 0;
  std::int64_t newest_ = 0;
  unsigned archives_ = 0;
};

}  // namespace

Result<ImportResult> copy_into_part(const ImportRequest& request, const StepProgress& progress) {
  progress("build", 0);
  DSEC_ASSIGN(const std::string text, sys::read_file("/work/copy", kSpecLimit));
  DSEC_ASSIGN(const CopySpec spec, decode_copy_spec(text));
  if (!spec.destination.starts_with('/')) return invalid_argument("the destination is not absolute");
  DSEC_ASSIGN(std::vector<erofs::Reader> images, open_passed_images(request.data_files));
  const std::size_t below_count = request.stack.size();
  if (images.size() < below_count || images.size() > below_count + 1) return Error(ErrorCode::kInternal, "not the images that were named");
  std::vector<erofs::Reader*> below;
  for (std::size_t i = 0; i < below_count; i++) below.push_back(&images[i]);
  LayerStack stack(std::move(below));
  erofs::Reader* source = images.size() > below_count ? &images.back() : nullptr;
  std::vector<erofs::ParentData> parents;
  if (source != nullptr) parents = erofs::data_of({source});
  DSEC_ASSIGN(LayerFilesInWork layer, LayerFilesInWork::begin({.overlaps = erofs::Overlaps::kLayer, .profile = request.profile, .parents = std::move(parents)}));
  CopyRun run(request, spec, stack, source, *layer.writer);
  DSEC_TRY(run.run());
  ImportResult result = run.result();
  DSEC_TRY(layer.finish(run.newest_seconds(), "step of a build " + request.diff_id));
  return result;
}

}  // namespace dsec::image
