#include "erofs/entry_copy.h"

#include <sys/stat.h>

#include <algorithm>

#include "erofs/attributes.h"
#include "erofs/stored_content.h"
#include "erofs/tree_walk.h"

namespace dsec::erofs {

namespace {

constexpr std::size_t kCopyBytes = 1 << 20;

std::string joined(const std::string& directory, std::string_view name) {
  if (directory.empty() || name.empty()) return directory + std::string(name);
  return directory + "/" + std::string(name);
}

std::uint64_t bytes_in_device(const Content& content) {
  std::uint64_t blocks = content.run.blocks;
  for (const SparseRun& sparse : content.sparse) blocks += sparse.run.blocks;
  return blocks * kBlockBytes;
}

}  // namespace

EntryCopy::EntryCopy(Reader& source, LayerStack& below, Writer& writer, CopyRules rules)
    : source_(source), below_(below), writer_(writer), rules_(rules), buffer_(kCopyBytes, '\0') {}

Result<EntryMeta> EntryCopy::meta_of(const StoredInode& node) {
  EntryMeta meta{.mode = node.mode & 07777, .uid = rules_.uid.value_or(node.uid), .gid = rules_.gid.value_or(node.gid), .mtime_seconds = std::max<std::int64_t>(node.seconds, 0), .mtime_nanoseconds = node.nanoseconds, .attributes = {}};
  if (rules_.mode && !node.is_symlink()) meta.mode = *rules_.mode;
  DSEC_ASSIGN(std::vector<Attribute> attributes, source_.attributes(node));
  for (Attribute& one : attributes) {
    if (attribute_allowed(one.name)) meta.attributes.emplace_back(std::move(one.name), std::move(one.value));
  }
  std::sort(meta.attributes.begin(), meta.attributes.end());
  DSEC_TRY(check_attributes(meta.attributes));
  newest_seconds_ = std::max(newest_seconds_, meta.mtime_seconds + (meta.mtime_nanoseconds != 0 ? 1 : 0));
  return meta;
}

Result<void> EntryCopy::count(std::uint64_t bytes) {
  if (++entries_ > rules_.max_entries) return Error(ErrorCode::kTooLarge, "more than " + std::to_string(rules_.max_entries) + " entries are copied");
  content_bytes_ += bytes;
  if (content_bytes_ > rules_.max_bytes) return Error(ErrorCode::kTooLarge, "more than " + std::to_string(rules_.max_bytes) + " bytes are copied");
  return {};
}

void EntryCopy::note(char kind, const std::string& to, const EntryMeta& meta, const std::string& more) {
  std::string line{kind};
  line += " " + std::to_string(meta.mode) + " " + std::to_string(meta.uid) + ":" + std::to_string(meta.gid);
  for (const auto& [name, value] : meta.attributes) line += " " + name + "=" + std::to_string(value.size()) + ":" + value;
  noted_[to] = line + " " + more;
}

Result<std::string> EntryCopy::add_directory(const StoredInode& node, const std::string& to) {
  DSEC_ASSIGN(const EntryMeta meta, meta_of(node));
  DSEC_TRY(count(0));
  DSEC_ASSIGN(const std::optional<LayerStack::Found> there, below_.find(to, LayerStack::LastLink::kKeep));
  if (there && !there->node.is_directory()) {
    DSEC_ASSIGN(const std::optional<LayerStack::Found> led, below_.find(to, LayerStack::LastLink::kFollow));
    if (!led || !led->node.is_directory()) return Error(ErrorCode::kConflict, "a directory is copied to /" + to + ", which is none");
    note('l', to, meta, "");
    return led->path;
  }
  note('d', to, meta, "");
  DSEC_TRY(writer_.make_directory(to, meta));
  return to;
}

Result<void> EntryCopy::add_entry(const StoredInode& node, const std::string& to) {
  DSEC_ASSIGN(const EntryMeta meta, meta_of(node));
  DSEC_TRY(count(node.is_file() ? node.size : 0));
  DSEC_ASSIGN(const std::optional<LayerStack::Found> there, below_.find(to, LayerStack::LastLink::kKeep));
  if (there && there->node.is_directory()) return Error(ErrorCode::kConflict, "a file is copied to /" + to + ", which is a directory");
  DSEC_ASSIGN(const std::uint32_t made, writer_.tree().make(to, static_cast<std::uint16_t>((node.mode & S_IFMT) | meta.mode), meta));
  if (node.is_symlink()) {
    DSEC_ASSIGN(const std::string target, source_.link_target(node));
    if (target.size() > Tree::kLongestLink) return invalid_argument(to + ": a symbolic link's target is too long");
    writer_.tree().set_link_text(made, target);
    note('s', to, meta, target);
    return {};
  }
  note('f', to, meta, "");
  if (node.is_file()) {
    writer_.tree().node(made).size = node.size;
    files_.push_back({made, node, to});
  }
  return {};
}

Result<void> EntryCopy::add_file(const std::string& from, const StoredInode& node, const std::string& to) {
  if (node.is_device()) return invalid_argument(from + ": a device is not copied");
  return add_entry(node, to);
}

Result<void> EntryCopy::add_contents(const std::string& from, const std::string& to) {
  DSEC_ASSIGN(TreeWalk walk, TreeWalk::begin(source_, "/" + from, Depth::kAll));
  std::map<std::string, std::string> places = {{from.empty() ? "" : "/" + from, to}};  // of directories, by their paths in the source
  for (;;) {
    DSEC_ASSIGN(const std::optional<TreeWalk::Entry> entry, walk.next());
    if (!entry) return {};
    if (entry->node.is_device()) return invalid_argument(entry->path + ": a device is not copied");
    const std::size_t slash = entry->path.rfind('/');
    const std::string path = joined(places.at(entry->path.substr(0, slash)), std::string_view(entry->path).substr(slash + 1));
    if (!entry->node.is_directory()) {
      DSEC_TRY(add_entry(entry->node, path));
      continue;
    }
    DSEC_ASSIGN(std::string place, add_directory(entry->node, path));
    places[entry->path] = std::move(place);
  }
}

Result<std::map<std::uint32_t, bool>> EntryCopy::devices_to_keep() {
  std::map<std::uint32_t, std::uint64_t> used;
  std::map<std::uint64_t, bool> seen;
  std::string tail;
  for (const File& file : files_) {
    if (file.from.size == 0 || !seen.emplace(file.from.nid, true).second) continue;
    DSEC_ASSIGN(const std::optional<Content> content, describe_content(source_, file.from, room_beside(writer_.tree().attributes(file.node)), tail));
    if (content) used[content->device] += bytes_in_device(*content);
  }
  std::map<std::uint32_t, bool> keep = {{0, true}};
  const bool room = source_.devices().size() < kMaximalDevices;
  for (const auto& [device, bytes] : used) {
    if (device == 0) continue;
    const std::uint64_t whole = std::uint64_t{source_.devices()[device - 1].blocks} * kBlockBytes;
    keep[device] = room && bytes >= whole / 2;
  }
  return keep;
}

Result<std::string> EntryCopy::digest_of(const StoredInode& node) {
  Sha256 hash;
  for (std::uint64_t at = 0; at < node.size;) {
    DSEC_ASSIGN(const std::size_t got, source_.read(node, at, std::span(buffer_.data(), buffer_.size())));
    if (got == 0) return Error(ErrorCode::kDataFault, "a file ends early");
    hash.update(std::string_view(buffer_.data(), got));
    at += got;
  }
  return hash.hex();
}

Result<std::uint32_t> EntryCopy::copy(const File& file) {
  ContentStore& contents = writer_.contents();
  contents.begin({.bytes = file.from.size, .sparse = file.from.layout == Layout::kChunked}, room_beside(writer_.tree().attributes(file.node)));
  for (std::uint64_t at = 0; at < file.from.size;) {
    DSEC_ASSIGN(const Extent extent, source_.extent(file.from, at));
    const std::uint64_t left = extent.at + extent.length - at;
    if (extent.kind == Extent::Kind::kHole) {
      DSEC_TRY(contents.skip(left));
      at += left;
      continue;
    }
    const auto part = static_cast<std::size_t>(std::min<std::uint64_t>(left, buffer_.size()));
    DSEC_ASSIGN(const std::size_t got, source_.read(file.from, at, std::span(buffer_.data(), part)));
    if (got != part) return Error(ErrorCode::kDataFault, "a file ends early");
    DSEC_TRY(contents.write(std::string_view(buffer_.data(), got)));
    at += got;
  }
  return contents.finish();
}

Result<std::uint32_t> EntryCopy::refer(const File& file, const std::map<std::uint32_t, bool>& keep) {
  std::string tail;
  DSEC_ASSIGN(std::optional<Content> content, describe_content(source_, file.from, room_beside(writer_.tree().attributes(file.node)), tail));
  if (content) {
    const auto known = keep.find(content->device);
    if (known != keep.end() && known->second) {
      const std::uint32_t body = writer_.contents().refer(std::move(*content));
      if (body != kNone) return body;
    }
  }
  return copy(file);
}

Result<void> EntryCopy::place_contents() {
  std::sort(files_.begin(), files_.end(), [](const File& a, const File& b) { return std::pair(a.from.nid, a.node) < std::pair(b.from.nid, b.node); });
  DSEC_ASSIGN(const auto keep, devices_to_keep());
  std::map<std::uint64_t, Placed> placed;
  for (const File& file : files_) {
    auto known = placed.find(file.from.nid);
    if (known == placed.end()) {
      Placed one{.body = kNone, .digest = {}};
      DSEC_ASSIGN(one.digest, digest_of(file.from));
      if (file.from.size != 0) {
        DSEC_ASSIGN(one.body, refer(file, keep));
      }
      known = placed.emplace(file.from.nid, std::move(one)).first;
    }
    if (file.from.size != 0) writer_.tree().node(file.node).body = known->second.body;
    noted_[file.to] += known->second.digest;
  }
  Sha256 hash;
  for (const auto& [path, text] : noted_) {
    hash.update(std::to_string(path.size()) + ":" + path + std::to_string(text.size()) + ":" + text);
  }
  digest_ = hash.hex();
  return {};
}

}  // namespace dsec::erofs
