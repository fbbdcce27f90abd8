#include "erofs/tree.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/random.h"
#include "erofs/fingerprint.h"

namespace dsec::erofs {

namespace {

constexpr std::uint16_t kDeepest = 400;
constexpr int kMostLinks = 40;
constexpr std::size_t kMostTextBytes = 0xFFFF0000;
constexpr std::uint32_t kMostEntries = 0xFFFFFF00;
constexpr EntryMeta kImplied = {};

std::string_view directory_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

std::string_view name_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

Error type_change(std::string_view path) { return invalid_argument(std::string(path) + ": an earlier entry of this name is of another type"); }

}  // namespace

Tree::Tree(Overlaps overlaps) : overlaps_(overlaps), seed_(SystemRandom().next()), slots_(1024, kNone) { new_node(S_IFDIR | 0755, kImplied); }

// Keyed: whoever chooses the names cannot choose their collisions.
std::uint64_t Tree::hash_of(std::uint32_t directory, std::string_view text) const {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15;
  std::uint64_t hash = fold(seed_ ^ directory, kOdd ^ text.size());
  while (!text.empty()) {
    std::uint64_t word = 0;
    const std::size_t bytes = std::min<std::size_t>(text.size(), 8);
    std::memcpy(&word, text.data(), bytes);
    hash = fold(hash ^ word, seed_ | 1) + kOdd;
    text.remove_prefix(bytes);
  }
  return fold(hash, kOdd);
}

std::uint32_t* Tree::slot_of(std::uint32_t directory, std::string_view text_wanted) {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash_of(directory, text_wanted) & mask;; at = (at + 1) & mask) {
    if (slots_[at] == kNone) return &slots_[at];
    const Name& there = names_[slots_[at]];
    if (there.directory == directory && text(there) == text_wanted) return &slots_[at];
  }
}

void Tree::grow() {
  slots_.assign(slots_.size() * 2, kNone);
  for (std::uint32_t id = 0; id < names_.size(); id++) *slot_of(names_[id].directory, text(names_[id])) = id;
}

std::uint32_t Tree::find_name(std::uint32_t directory, std::string_view text_wanted) { return *slot_of(directory, text_wanted); }

void Tree::describe(Node& node, const EntryMeta& meta) {
  node.mode = static_cast<std::uint16_t>((node.mode & S_IFMT) | (meta.mode & 07777));
  node.uid = meta.uid;
  node.gid = meta.gid;
  node.seconds = meta.mtime_seconds;
  node.nanoseconds = static_cast<std::uint32_t>(meta.mtime_nanoseconds);
  node.attributes = kNone;
  if (meta.attributes.empty()) return;
  node.attributes = static_cast<std::uint32_t>(attribute_sets_.size());
  attribute_sets_.push_back(meta.attributes);
}

std::uint32_t Tree::new_node(std::uint16_t mode, const EntryMeta& meta) {
  nodes_.push_back({.mode = static_cast<std::uint16_t>(mode & S_IFMT)});
  describe(nodes_.back(), meta);
  nodes_.back().mode = mode;
  return static_cast<std::uint32_t>(nodes_.size() - 1);
}

Result<void> Tree::put(Place place, std::uint32_t node) {
  std::uint32_t* slot = slot_of(place.directory, place.name);
  if (*slot != kNone) {
    Name& name = names_[*slot];
    if (name.node != kNone && overlaps_ == Overlaps::kRefuse && S_ISDIR(nodes_[name.node].mode)) return type_change(place.name);
    name.node = node;
    cached_directory_ = kNone;  // it may have been a link that the cached path led through
    return {};
  }
  if (texts_.size() + place.name.size() > kMostTextBytes || names_.size() >= kMostEntries) return Error(ErrorCode::kTooLarge, "too many names for one image");
  DSEC_CHECK(!place.name.empty() && place.name.size() <= 255);
  *slot = static_cast<std::uint32_t>(names_.size());
  Node& directory = nodes_[place.directory];
  names_.push_back({place.directory, node, directory.body, static_cast<std::uint32_t>(texts_.size()), static_cast<std::uint8_t>(place.name.size())});
  directory.body = *slot;
  texts_ += place.name;
  if (names_.size() * 2 > slots_.size()) grow();
  return {};
}

Result<std::uint32_t> Tree::new_directory(std::uint32_t parent, std::string_view name, mode_t mode) {
  if (nodes_[parent].depth >= kDeepest) return invalid_argument("an entry lies more than 400 directories deep");
  const std::uint32_t made = new_node(static_cast<std::uint16_t>(S_IFDIR | mode), kImplied);
  nodes_[made].parent = parent;
  nodes_[made].depth = static_cast<std::uint16_t>(nodes_[parent].depth + 1);
  DSEC_TRY(put({parent, name}, made));
  return made;
}

// Follows links as if the root were "/": what they lead to must be there.
Result<std::uint32_t> Tree::walk(std::uint32_t from, std::string_view path, Missing missing, int& links_left) {
  std::uint32_t at = from;
  while (!path.empty()) {
    const std::size_t slash = std::min(path.find('/'), path.size());
    const std::string_view part = path.substr(0, slash);
    path.remove_prefix(std::min(slash + 1, path.size()));
    if (part.empty() || part == ".") continue;
    if (part == "..") {
      at = nodes_[at].parent;
      continue;
    }
    const std::uint32_t name = part.size() <= 255 ? find_name(at, part) : kNone;
    const std::uint32_t child = name == kNone ? kNone : names_[name].node;
    if (child == kNone || is_whiteout(child)) {
      if (missing == Missing::kReport || part.size() > 255) return kNone;
      DSEC_ASSIGN(at, imply_directory(at, part, child != kNone));
    } else if (S_ISDIR(nodes_[child].mode)) {
      at = child;
    } else if (!S_ISLNK(nodes_[child].mode)) {
      return Error(ErrorCode::kInvalidArgument, "leads through something that is no directory", ENOTDIR);
    } else {
      DSEC_ASSIGN(at, follow(at, child, part, missing, links_left));
      if (at == kNone) return kNone;
    }
  }
  return at;
}

Result<std::uint32_t> Tree::follow(std::uint32_t at, std::uint32_t child, std::string_view name, Missing missing, int& links_left) {
  if (overlaps_ == Overlaps::kRefuse || nodes_[child].linked_below || --links_left < 0) return Error(ErrorCode::kInvalidArgument, "leads through a symbolic link", ELOOP);
  const std::string target = link_text(child);
  const std::uint32_t from = target.starts_with('/') ? kRoot : at;
  // What a layer by itself lacks is in one below, or the layer is wrong.
  if (overlaps_ == Overlaps::kLayer) return walk(from, target, missing, links_left);
  DSEC_ASSIGN(const std::uint32_t led, walk(from, target, Missing::kReport, links_left));
  if (led == kNone && missing == Missing::kMake) return type_change(name);  // a link to nowhere has the name
  return led;
}

bool Tree::is_whiteout(std::uint32_t node) const { return overlaps_ == Overlaps::kLayer && S_ISCHR(nodes_[node].mode); }

Result<std::uint32_t> Tree::imply_directory(std::uint32_t parent, std::string_view name, bool over_whiteout) {
  DSEC_ASSIGN(const std::uint32_t made, new_directory(parent, name, 0755));
  implied_directories_++;
  nodes_[made].stated = nodes_[made].opaque = over_whiteout;  // it is not the directory that lies below
  return made;
}

Result<std::uint32_t> Tree::directory(std::string_view path) {
  int links_left = kMostLinks;
  return walk(kRoot, path, Missing::kReport, links_left).within(path);
}

Result<Tree::Place> Tree::place(const std::string& path) {
  const std::string_view parent = directory_of(path);
  if (cached_directory_ == kNone || cached_path_ != parent) {
    int links_left = kMostLinks;
    DSEC_ASSIGN(const std::uint32_t found, walk(kRoot, parent, Missing::kMake, links_left).within(path));
    cached_directory_ = found;
    cached_path_ = parent;
  }
  return Place{cached_directory_, name_of(path)};
}

Result<std::uint32_t> Tree::make(const std::string& path, std::uint16_t mode, const EntryMeta& meta) {
  DSEC_CHECK(!S_ISDIR(mode));
  DSEC_ASSIGN(const Place at, place(path));
  const std::uint32_t made = new_node(mode, meta);
  DSEC_TRY(put(at, made).within(path));
  return made;
}

Result<void> Tree::make_directory(const std::string& path, const EntryMeta& meta) {
  std::uint32_t made = kRoot;
  if (!path.empty()) {
    DSEC_ASSIGN(const Place at, place(path));
    const std::uint32_t name = find_name(at.directory, at.name);
    made = name == kNone ? kNone : names_[name].node;
    const bool over_another = made != kNone && !S_ISDIR(nodes_[made].mode);
    if (over_another && overlaps_ == Overlaps::kRefuse) return type_change(path);
    if (made == kNone || over_another) {
      DSEC_ASSIGN(made, new_directory(at.directory, at.name, meta.mode).within(path));
      // What it takes the place of had hidden the directory that lies below.
      nodes_[made].opaque = over_another && overlaps_ == Overlaps::kLayer;
    }
  }
  describe(nodes_[made], meta);
  nodes_[made].stated = true;
  return {};
}

Result<void> Tree::make_hard_link(const std::string& path, const std::string& target) {
  if (target.empty()) return invalid_argument(path + ": a hard link to the root");
  if (path == target) return invalid_argument(path + ": a hard link to itself");
  DSEC_ASSIGN(std::uint32_t node, find(target).within(path));
  if (node == kNone && overlaps_ == Overlaps::kLayer) {
    if (target.size() > kLongestLink) return invalid_argument(path + ": a hard link's target is too long");
    node = new_node(S_IFLNK | 0777, {.uid = kUnstatedOwner, .gid = kUnstatedOwner});
    nodes_[node].linked_below = true;
    set_link_text(node, target);
  }
  if (node == kNone || is_whiteout(node)) return invalid_argument(path + ": a hard link to an entry that is not there");
  if (S_ISDIR(nodes_[node].mode)) return invalid_argument(path + ": a hard link to a directory");
  return link(path, node);
}

Result<std::uint32_t> Tree::find(const std::string& path) {
  DSEC_ASSIGN(const std::uint32_t parent, directory(directory_of(path)));
  const std::uint32_t name = parent == kNone ? kNone : find_name(parent, name_of(path));
  return name == kNone ? kNone : names_[name].node;
}

Result<void> Tree::link(const std::string& path, std::uint32_t node) {
  DSEC_ASSIGN(const Place at, place(path));
  return put(at, node).within(path);
}

Result<void> Tree::ensure_directory(const std::string& path, mode_t mode) {
  DSEC_ASSIGN(const std::uint32_t there, directory(path));
  if (there != kNone) return {};
  DSEC_ASSIGN(const Place at, place(path));
  const std::uint32_t name = find_name(at.directory, at.name);
  if (name != kNone && names_[name].node != kNone) return type_change(path);
  implied_directories_++;
  Result<std::uint32_t> made = new_directory(at.directory, at.name, mode);
  if (!made.ok()) return std::move(made).error();
  return {};
}

Result<void> Tree::make_opaque(const std::string& path) {
  int links_left = kMostLinks;
  DSEC_ASSIGN(const std::uint32_t found, walk(kRoot, path, Missing::kMake, links_left).within(path));
  nodes_[found].opaque = true;
  return {};
}

Result<void> Tree::remove(const std::string& path) {
  DSEC_CHECK(!path.empty());
  Result<std::uint32_t> parent = directory(directory_of(path));
  if (!parent.ok()) {
    if (parent.error().error_number() == ENOTDIR) return {};
    return std::move(parent).error();
  }
  const std::uint32_t name = *parent == kNone ? kNone : find_name(*parent, name_of(path));
  if (name != kNone) names_[name].node = kNone;
  cached_directory_ = kNone;
  return {};
}

Result<std::vector<std::string>> Tree::names(const std::string& path) {
  std::vector<std::string> out;
  Result<std::uint32_t> found = directory(path);
  if (!found.ok()) {
    if (found.error().error_number() == ENOTDIR) return out;
    return std::move(found).error();
  }
  if (*found == kNone) return out;
  for (const std::uint32_t id : sorted_names(*found)) out.emplace_back(text(names_[id]));
  return out;
}

std::vector<std::uint32_t> Tree::sorted_names(std::uint32_t directory) const {
  std::vector<std::uint32_t> out;
  for (std::uint32_t id = nodes_[directory].body; id != kNone; id = names_[id].older) {
    if (names_[id].node != kNone) out.push_back(id);
  }
  std::sort(out.begin(), out.end(), [&](std::uint32_t a, std::uint32_t b) { return text(names_[a]) < text(names_[b]); });
  return out;
}

void Tree::set_link_text(std::uint32_t node, const std::string& target) {
  DSEC_CHECK(!target.empty() && target.size() <= kLongestLink);
  nodes_[node].body = static_cast<std::uint32_t>(link_texts_.size());
  nodes_[node].size = target.size();
  link_texts_.push_back(target);
}

void Tree::mark_unstated() {
  for (Node& node : nodes_) {
    if (S_ISDIR(node.mode) && !node.stated) node.uid = node.gid = kUnstatedOwner;
  }
}

const Attributes& Tree::attributes(std::uint32_t node) const {
  static const Attributes kEmpty;
  return nodes_[node].attributes == kNone ? kEmpty : attribute_sets_[nodes_[node].attributes];
}

}  // namespace dsec::erofs
