// One inode by itself: fields and attributes.
#include <algorithm>
#include <cstring>

#include "erofs/check_state.h"

namespace dsec::erofs {
namespace {

constexpr std::uint64_t kMostListedBytes = 128 << 10;

// struct vfs_cap_data, revision 2 or 3.
bool is_capability(const std::string& value) {
  std::uint32_t head = 0;
  if (value.size() != 20 && value.size() != 24) return false;
  std::memcpy(&head, value.data(), sizeof head);
  return (head & 0x00FFFFFF) <= 1 && head >> 24 == (value.size() == 20 ? 2U : 3U);
}

// What an attribute may be called, and what the ones that the kernel acts upon may say.
bool may_have(const StoredInode& node, const Attribute& attribute) {
  const std::string_view name = attribute.name;
  if (name == "security.capability") return is_capability(attribute.value);
  if (name == "trusted.overlay.opaque") return node.is_directory() && attribute.value == "y";
  if (name == "trusted.overlay.origin") return node.is_directory() && attribute.value.empty();
  return name.starts_with("user.") && name.size() > 5 && !name.starts_with("user.overlay.") && name.find('\0') == std::string_view::npos;
}

// `capability` gets the value of the file capability, if there is one.
Result<void> check_attributes(CheckState& state, const StoredInode& node, std::string& capability) {
  if (node.attribute_bytes == 0) return {};
  const std::uint64_t here = node.attributes_at();
  DSEC_ASSIGN(const AttributesHeader header, state.reader.load<AttributesHeader>(here));
  if (header.name_filter != 0 || std::any_of(std::begin(header.reserved), std::end(header.reserved), [](std::uint8_t b) { return b != 0; }))
    return state.refuse(here, "reserved bytes of the attributes are not zero");
  DSEC_ASSIGN(const std::vector<Attribute> attributes, state.reader.attributes(node));
  if (attributes.empty()) return state.refuse(here, "there is room for attributes and none");
  std::vector<std::string_view> names;
  for (const Attribute& attribute : attributes) {
    if (!may_have(node, attribute)) return state.refuse(here, "an attribute that no layer may have: " + attribute.name);
    if (attribute.name == "security.capability") capability = attribute.value;
    names.push_back(attribute.name);
  }
  std::sort(names.begin(), names.end());
  if (std::adjacent_find(names.begin(), names.end()) != names.end()) return state.refuse(here, "an attribute occurs twice");
  return {};
}

// The entries leave no room for anything but their padding, which is zero.
Result<void> check_attribute_padding(CheckState& state, const StoredInode& node) {
  std::vector<char> bytes(node.attribute_bytes);
  if (bytes.empty()) return {};
  DSEC_TRY(state.reader.read_source(0, node.attributes_at(), bytes));
  for (std::size_t at = sizeof(AttributesHeader); at < bytes.size();) {
    AttributeEntry entry{};
    std::memcpy(&entry, bytes.data() + at, sizeof entry);
    at += sizeof entry + entry.name_bytes + entry.value_bytes;
    for (; at % 4 != 0; ++at)
      if (at >= bytes.size() || bytes[at] != 0) return state.refuse(node.attributes_at() + at, "padding of an attribute is not zero");
  }
  return {};
}

Result<bool> reserved_is_zero(CheckState& state, const StoredInode& node) {
  if (node.inode_bytes == sizeof(ShortInode)) {
    DSEC_ASSIGN(const ShortInode inode, state.reader.load<ShortInode>(node.offset));
    return inode.reserved == 0 && inode.reserved_end == 0;
  }
  DSEC_ASSIGN(const Inode inode, state.reader.load<Inode>(node.offset));
  return inode.reserved == 0 && std::all_of(std::begin(inode.reserved_end), std::end(inode.reserved_end), [](std::uint8_t b) { return b == 0; });
}

Result<void> check_special(CheckState& state, const StoredInode& node) {
  const EntryType type = type_of(node);
  if (type != EntryType::kCharacterDevice && type != EntryType::kFifo) return state.refuse(node.offset, "a file of a kind that no layer may have");
  if (node.size != 0 || node.layout != Layout::kFlat) return state.refuse(node.offset, "a special file has content");
  if (type == EntryType::kFifo && (node.address == 0 || node.address == kNoBlock)) return {};
  if (type == EntryType::kFifo || node.address != 0) return state.refuse(node.offset, "a device node that is no whiteout");
  state.facts.whiteouts++;
  return {};
}

void note_privileges(CheckState& state, const StoredInode& node, std::string capability) {
  const bool set_id = (node.mode & 06000) != 0;
  state.facts.setuid_files += set_id;
  state.facts.capability_files += !capability.empty();
  if (!set_id && capability.empty()) return;
  PrivilegedInode found{state.path_of(state.directory, state.name), node.mode & 07777, std::move(capability)};
  state.listed_bytes += found.path.size();
  if (state.listed_bytes <= kMostListedBytes) state.facts.privileged.push_back(std::move(found));
}

}  // namespace

EntryType type_of(const StoredInode& node) {
  switch (node.mode & 0170000) {
    case 0100000:
      return EntryType::kFile;
    case 0040000:
      return EntryType::kDirectory;
    case 0020000:
      return EntryType::kCharacterDevice;
    case 0060000:
      return EntryType::kBlockDevice;
    case 0010000:
      return EntryType::kFifo;
    case 0140000:
      return EntryType::kSocket;
    case 0120000:
      return EntryType::kSymlink;
    default:
      return EntryType{0};
  }
}

Result<void> check_node(CheckState& state, const StoredInode& node) {
  DSEC_TRY(state.take(node.offset, node.offset, node.body_end()));
  DSEC_ASSIGN(const bool reserved, reserved_is_zero(state, node));
  if (!reserved) return state.refuse(node.offset, "reserved bytes of the inode are not zero");
  if (node.number != static_cast<std::uint32_t>(node.nid)) return state.refuse(node.offset, "the inode's number is not its place");
  if (node.nanoseconds >= 1'000'000'000) return state.refuse(node.offset, "a time is out of range");
  if (node.links == 0) return state.refuse(node.offset, "the inode has no links");
  if (++state.facts.inodes > state.limits.inodes) return state.refuse(node.offset, "there are more inodes than the limit");
  std::string capability;
  DSEC_TRY(check_attributes(state, node, capability));
  DSEC_TRY(check_attribute_padding(state, node));

  if (!node.is_file() && !node.is_directory() && !node.is_symlink()) return check_special(state, node);
  if (node.is_directory()) state.facts.directories++;
  if (node.is_file()) {
    state.facts.files++;
    state.facts.content_bytes += node.size;
    note_privileges(state, node, std::move(capability));
  }
  return check_content(state, node);
}

}  // namespace dsec::erofs
