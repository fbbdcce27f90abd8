#include "erofs/attributes.h"

#include <cstring>

#include "erofs/format.h"

namespace dsec::erofs {

namespace {

constexpr std::string_view kUser = "user.";
constexpr std::string_view kCapability = "security.capability";
constexpr std::size_t kMostAreaBytes = 64 << 10;

// struct vfs_cap_data of revision 2 or 3: nothing else is set by a kernel today.
bool is_capability(std::string_view value) {
  if (value.size() < 4) return false;
  std::uint32_t head;
  std::memcpy(&head, value.data(), sizeof head);
  const std::uint32_t revision = head & 0xFF000000;
  const std::uint32_t flags = head & 0x00FFFFFF;
  return flags <= 1 && ((revision == 0x02000000 && value.size() == 20) || (revision == 0x03000000 && value.size() == 24));
}

constexpr std::size_t padded(std::size_t bytes) { return (bytes + 3) / 4 * 4; }

}  // namespace

bool attribute_allowed(std::string_view name) {
  if (name == kCapability) return true;
  return name.starts_with(kUser) && name.size() > kUser.size() && !name.starts_with("user.overlay.");
}

Result<void> check_attributes(const Attributes& attributes) {
  for (std::size_t i = 0; i < attributes.size(); i++) {
    const auto& [name, value] = attributes[i];
    if (!attribute_allowed(name)) return invalid_argument("an attribute that no image holds: " + name);
    if (i != 0 && attributes[i - 1].first >= name) return invalid_argument("the attribute " + name + " is there twice");
    if (name.size() > kMaximalNameBytes || name.find('\0') != std::string::npos) return invalid_argument("an attribute's name is too long");
    if (name == kCapability && !is_capability(value)) return invalid_argument("not a file capability");
    if (value.size() > 0xFFFF) return invalid_argument("the attribute " + name + " is longer than 64 KiB");
  }
  if (attribute_area_bytes(stored_attributes(attributes, {})) > kMostAreaBytes) return invalid_argument("the attributes of one file pass 64 KiB");
  return {};
}

std::vector<StoredAttribute> stored_attributes(const Attributes& attributes, DirectoryMarks marks) {
  std::vector<StoredAttribute> out;
  for (const auto& [name, value] : attributes) {
    const std::string_view text = name;
    if (text == kCapability) {
      out.push_back({kSecurityPrefix, text.substr(text.find('.') + 1), value});
    } else {
      out.push_back({kUserPrefix, text.substr(kUser.size()), value});
    }
  }
  if (marks.opaque) out.push_back({kTrustedPrefix, "overlay.opaque", "y"});
  // overlayfs lists a directory that is merged with nothing straight from its
  // layer, whiteouts and all, unless this attribute says that it came from below.
  if (marks.holds_whiteouts) out.push_back({kTrustedPrefix, "overlay.origin", ""});
  return out;
}

std::size_t attribute_area_bytes(const std::vector<StoredAttribute>& attributes) {
  if (attributes.empty()) return 0;
  std::size_t bytes = sizeof(AttributesHeader);
  for (const StoredAttribute& one : attributes) bytes += padded(sizeof(AttributeEntry) + one.name.size() + one.value.size());
  return bytes;
}

std::uint64_t room_beside(const Attributes& attributes) {
  const std::size_t head = sizeof(Inode) + attribute_area_bytes(stored_attributes(attributes, {}));
  return head < kBlockBytes ? kBlockBytes - head : 0;
}

void put_attributes(char* out, const std::vector<StoredAttribute>& attributes) {
  if (attributes.empty()) return;
  out += sizeof(AttributesHeader);  // all zero: no filter, nothing shared
  for (const StoredAttribute& one : attributes) {
    const AttributeEntry entry{static_cast<std::uint8_t>(one.name.size()), one.prefix, static_cast<std::uint16_t>(one.value.size())};
    std::memcpy(out, &entry, sizeof entry);
    std::memcpy(out + sizeof entry, one.name.data(), one.name.size());
    if (!one.value.empty()) std::memcpy(out + sizeof entry + one.name.size(), one.value.data(), one.value.size());
    out += padded(sizeof entry + one.name.size() + one.value.size());
  }
}

}  // namespace dsec::erofs
