#include "erofs/stack_lookup.h"

#include <algorithm>

#include "erofs/tree.h"

namespace dsec::erofs {

namespace {

constexpr int kMostLinks = 40;

Result<bool> hides_all_below(Reader& reader, const StoredInode& directory) {
  DSEC_ASSIGN(const std::vector<Attribute> attributes, reader.attributes(directory));
  return std::any_of(attributes.begin(), attributes.end(), [](const Attribute& one) { return one.name == "trusted.overlay.opaque"; });
}

// The components in reverse, for who takes them from the back.
void push_reversed(std::string_view path, std::vector<std::string>& out) {
  std::vector<std::string> parts;
  while (!path.empty()) {
    path.remove_prefix(std::min(path.find_first_not_of('/'), path.size()));
    const std::string_view name = path.substr(0, path.find('/'));
    path.remove_prefix(name.size());
    if (!name.empty() && name != ".") parts.emplace_back(name);
  }
  out.insert(out.end(), parts.rbegin(), parts.rend());
}

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

}  // namespace

// What one layer says about a path.
struct LayerStack::Seen {
  std::optional<StoredInode> node;
  bool covers = false;  // what lower layers have there does not show
};

Result<LayerStack::Seen> LayerStack::look_in(std::size_t layer, const std::string& path) {
  Reader& reader = *layers_[layer];
  Seen seen;
  DSEC_ASSIGN(StoredInode at, reader.root());
  std::vector<std::string> parts;
  push_reversed(path, parts);
  for (;;) {
    DSEC_ASSIGN(const bool opaque, hides_all_below(reader, at));
    seen.covers = seen.covers || opaque;
    if (parts.empty()) break;
    DirectoryBlock block;
    DSEC_ASSIGN(const std::optional<DirectoryBlock::Entry> entry, reader.find(at, parts.back(), block));
    if (!entry) return seen;
    DSEC_ASSIGN(at, reader.node(entry->nid));
    parts.pop_back();
    if (at.is_directory()) continue;
    seen.covers = true;
    if (parts.empty() && !at.is_device()) seen.node = at;
    return seen;
  }
  seen.node = at;
  return seen;
}

Result<std::optional<LayerStack::Found>> LayerStack::find_here(const std::string& path, std::size_t layers) {
  std::optional<Found> implied;
  for (std::size_t i = layers; i-- > 0;) {
    DSEC_ASSIGN(const Seen seen, look_in(i, path));
    if (seen.node) {
      const bool unstated = seen.node->uid == kUnstatedOwner;
      if (unstated && seen.node->is_symlink()) {  // a hard link to what the lower layers have
        DSEC_ASSIGN(const std::string target, layers_[i]->link_target(*seen.node));
        return find_here(target, i);
      }
      if (!unstated || (path.empty() && i == 0)) {
        // A directory that is only implied above does not turn a file below into one.
        if (implied && !seen.node->is_directory() && !seen.node->is_symlink()) return implied;
        return std::optional(Found{i, *seen.node, path});
      }
      if (!implied) implied = Found{i, *seen.node, path};
    }
    if (seen.covers) return implied;
  }
  return implied;
}

Result<std::optional<LayerStack::Found>> LayerStack::find(std::string_view path, LastLink last) {
  std::vector<std::string> parts;
  push_reversed(path, parts);
  DSEC_ASSIGN(std::optional<Found> at, find_here("", layers_.size()));
  int links = 0;
  std::string here;
  while (at && !parts.empty()) {
    const std::string name = std::move(parts.back());
    parts.pop_back();
    if (name == "..") {
      here = parent_of(here);
      DSEC_ASSIGN(at, find_here(here, layers_.size()));
      continue;
    }
    const std::string next = here.empty() ? name : here + "/" + name;
    DSEC_ASSIGN(at, find_here(next, layers_.size()));
    if (!at) return std::optional<Found>();
    if (at->node.is_symlink() && (!parts.empty() || last == LastLink::kFollow)) {
      if (++links > kMostLinks) return invalid_argument(std::string(path.substr(0, 200)) + ": too many symbolic links");
      DSEC_ASSIGN(const std::string target, layers_[at->layer]->link_target(at->node));
      push_reversed(target, parts);
      if (target.starts_with('/')) here.clear();
      if (parts.empty()) {
        DSEC_ASSIGN(at, find_here(here, layers_.size()));
      }
      continue;
    }
    if (!parts.empty() && !at->node.is_directory()) return std::optional<Found>();
    here = next;
  }
  if (at) at->path = here;
  return at;
}

Result<std::optional<std::string>> LayerStack::read_file(std::string_view path, std::size_t limit) {
  DSEC_ASSIGN(const std::optional<Found> found, find(path, LastLink::kFollow));
  if (!found || !found->node.is_file()) return std::optional<std::string>();
  if (found->node.size > limit) return Error(ErrorCode::kTooLarge, std::string(path) + " is too large");
  std::string out(found->node.size, '\0');
  DSEC_ASSIGN(const std::size_t got, layers_[found->layer]->read(found->node, 0, std::span(out.data(), out.size())));
  out.resize(got);
  return std::optional(std::move(out));
}

}  // namespace dsec::erofs
