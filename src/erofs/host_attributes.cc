#include "erofs/host_attributes.h"

#include <sys/xattr.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "erofs/attributes.h"

namespace dsec::erofs {

namespace {

using Form = DirectoryInputOptions::Form;

constexpr std::size_t kMostAttributes = 32;
constexpr std::string_view kOverlay = "trusted.overlay.";
constexpr std::string_view kUserOverlay = "user.overlay.";
constexpr std::string_view kCapability = "security.capability";

Result<std::uint32_t> inside(std::uint32_t id, const std::vector<IdRange>& ids) {
  if (ids.empty()) return id;
  for (const IdRange& range : ids) {
    if (id >= range.outside && id - range.outside < range.count) return range.inside + (id - range.outside);
  }
  return invalid_argument("the owner " + std::to_string(id) + " lies outside of the tree's ids");
}

// The names one after another, each with its zero.
Result<std::string> attribute_names(int fd) {
  for (;;) {
    const ssize_t size = ::flistxattr(fd, nullptr, 0);
    if (size < 0 && errno == ENOTSUP) return std::string();
    if (size < 0) return errno_error("list attributes", errno);
    std::string names(static_cast<std::size_t>(size), '\0');
    const ssize_t got = ::flistxattr(fd, names.data(), names.size());
    if (got < 0 && errno == ERANGE) continue;
    if (got < 0) return errno_error("list attributes", errno);
    names.resize(static_cast<std::size_t>(got));
    return names;
  }
}

Result<std::string> attribute_value(int fd, const std::string& name) {
  std::string value(64 << 10, '\0');  // the kernel's limit
  const ssize_t got = ::fgetxattr(fd, name.c_str(), value.data(), value.size());
  if (got < 0) return errno_error("read the attribute " + name, errno);
  value.resize(static_cast<std::size_t>(got));
  return value;
}

// What a mark of overlayfs means for the layer; `name` without its prefix.
Result<void> take_mark(int fd, std::string_view name, HostEntry& entry) {
  if (name == "redirect" || name == "metacopy" || name == "whiteout") {
    return Error(ErrorCode::kUnsupported, "overlayfs left only a reference here (" + std::string(name) + "): the overlay was mounted with features that no layer can carry");
  }
  if (name != "opaque") return {};
  DSEC_ASSIGN(const std::string value, attribute_value(fd, std::string(kOverlay) + "opaque"));
  if (value != "y") return Error(ErrorCode::kUnsupported, "an opaque mark of an unknown kind");
  entry.opaque = true;
  return {};
}

// A capability of a user namespace names its root; in the image it is plain again.
bool shift_capability(std::string& value, const std::vector<IdRange>& ids) {
  constexpr std::size_t kPlain = 20;
  std::uint32_t head = 0;
  std::uint32_t root = 0;
  if (value.size() != kPlain + sizeof root) return true;
  std::memcpy(&head, value.data(), sizeof head);
  std::memcpy(&root, value.data() + kPlain, sizeof root);
  if (head >> 24 != 3) return true;
  const Result<std::uint32_t> mapped = inside(root, ids);
  if (!mapped.ok() || *mapped != 0) return false;
  head = (head & 0x00FFFFFF) | 0x02000000;
  value.resize(kPlain);
  std::memcpy(value.data(), &head, sizeof head);
  return true;
}

}  // namespace

Result<EntryMeta> meta_of(const struct stat& st, const std::vector<IdRange>& ids) {
  EntryMeta meta;
  meta.mode = st.st_mode & 07777;
  DSEC_ASSIGN(meta.uid, inside(st.st_uid, ids));
  DSEC_ASSIGN(meta.gid, inside(st.st_gid, ids));
  meta.mtime_seconds = std::clamp<std::int64_t>(st.st_mtim.tv_sec, 0, (1LL << 33) - 1);
  meta.mtime_nanoseconds = st.st_mtim.tv_nsec;
  return meta;
}

Result<HostEntry> describe(int fd, const struct stat& st, const DirectoryInputOptions& options, DirectoryInputCounts& counts) {
  HostEntry entry;
  DSEC_ASSIGN(entry.meta, meta_of(st, options.ids));
  DSEC_ASSIGN(const std::string names, attribute_names(fd));
  for (std::size_t at = 0; at < names.size(); at += std::strlen(names.c_str() + at) + 1) {
    const std::string name = names.c_str() + at;
    if (name.starts_with(kOverlay) || name.starts_with(kUserOverlay)) {
      if (options.form == Form::kOverlayUpper && name.starts_with(kOverlay)) DSEC_TRY(take_mark(fd, std::string_view(name).substr(kOverlay.size()), entry));
      continue;
    }
    if (!attribute_allowed(name) || entry.meta.attributes.size() >= kMostAttributes) {
      counts.attributes_dropped++;
      continue;
    }
    DSEC_ASSIGN(std::string value, attribute_value(fd, name));
    if (name == kCapability && !shift_capability(value, options.ids)) {
      counts.attributes_dropped++;
      continue;
    }
    entry.meta.attributes.emplace_back(name, std::move(value));
  }
  std::sort(entry.meta.attributes.begin(), entry.meta.attributes.end());
  return entry;
}

}  // namespace dsec::erofs
