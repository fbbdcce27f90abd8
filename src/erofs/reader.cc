#include "erofs/reader.h"

#include <algorithm>
#include <cstring>

namespace dsec::erofs {
namespace {

constexpr std::uint32_t kKnownFeatures = kLz4Padding | kCompressionSettings | kChunkedFiles | kDeviceTable;
constexpr std::uint16_t kFormatBits = 0xF;
constexpr std::uint64_t kMaximalTarget = 4095;  // PATH_MAX - 1

Error unsupported(std::string_view what) { return Error(ErrorCode::kUnsupported, "this is no image of ours: " + std::string(what)); }

std::string_view prefix_text(std::uint8_t prefix) {
  switch (prefix) {
    case kUserPrefix:
      return "user.";
    case kTrustedPrefix:
      return "trusted.";
    case kSecurityPrefix:
      return "security.";
    default:
      return "";
  }
}

}  // namespace

Error fault_at(std::uint64_t offset, std::string_view what) {
  return Error(ErrorCode::kDataFault, std::string(what) + " (byte " + std::to_string(offset) + ")");
}

Result<Reader> Reader::open(std::unique_ptr<Source> metadata, std::vector<std::unique_ptr<Source>> devices) {
  std::vector<std::unique_ptr<Source>> sources;
  sources.push_back(std::move(metadata));
  for (std::unique_ptr<Source>& device : devices) sources.push_back(std::move(device));
  Reader reader(std::move(sources));
  DSEC_TRY(reader.read_superblock());
  return reader;
}

Result<void> Reader::read_superblock() {
  DSEC_ASSIGN(superblock_, load<Superblock>(kSuperblockOffset));
  if (superblock_.magic != kMagic) return unsupported("no EROFS superblock");
  if (superblock_.block_bits != kBlockBits) return unsupported("its blocks are not of 4096 bytes");
  if ((superblock_.incompatible_features & ~kKnownFeatures) != 0) return unsupported("it has features that we do not write");
  if (superblock_.directory_block_bits != 0 || superblock_.extension_slots != 0) return unsupported("its superblock is extended");
  if (superblock_.extra_devices > kMaximalDevices) return unsupported("it has too many devices");
  for (std::uint64_t i = 0; i < superblock_.extra_devices; ++i) {
    DSEC_ASSIGN(const DeviceSlot slot, load<DeviceSlot>((superblock_.device_table_slot + i) * sizeof(DeviceSlot)));
    slots_.push_back(slot);
  }
  if (sources_.size() > 1 && sources_.size() != slots_.size() + 1)
    return Error(ErrorCode::kDataFault, "the image has " + std::to_string(slots_.size()) + " data files, not " + std::to_string(sources_.size() - 1));
  return {};
}

Result<StoredInode> Reader::node(std::uint64_t nid) {
  if (nid > metadata_bytes() / kSlotBytes) return Error(ErrorCode::kDataFault, "inode " + std::to_string(nid) + " lies beyond the metadata");
  const std::uint64_t offset = std::uint64_t{superblock_.metadata_block} * kBlockBytes + nid * kSlotBytes;
  DSEC_ASSIGN(const ShortInode head, load<ShortInode>(offset).within("read inode " + std::to_string(nid)));
  if ((head.format & ~kFormatBits) != 0) return fault_at(offset, "the inode's format is unknown");
  StoredInode node{.nid = nid, .offset = offset, .layout = static_cast<Layout>(head.format >> 1), .mode = head.mode, .size = head.size,
            .address = head.address, .uid = head.uid, .gid = head.gid, .links = head.links,
            .seconds = static_cast<std::int64_t>(superblock_.epoch_seconds), .nanoseconds = superblock_.epoch_nanoseconds,
            .number = head.number, .inode_bytes = sizeof(ShortInode)};
  if ((head.format & kExtendedInode) != 0) {
    DSEC_ASSIGN(const Inode inode, load<Inode>(offset).within("read inode " + std::to_string(nid)));
    node.size = inode.size;
    node.address = inode.address;
    node.uid = inode.uid;
    node.gid = inode.gid;
    node.links = inode.links;
    node.seconds = static_cast<std::int64_t>(inode.seconds);
    node.nanoseconds = inode.nanoseconds;
    node.number = inode.number;
    node.inode_bytes = sizeof(Inode);
  }
  if (node.layout != Layout::kFlat && node.layout != Layout::kCompressed && node.layout != Layout::kInline && node.layout != Layout::kChunked)
    return unsupported("it has files of a layout that we do not write; one that an earlier version made has to be imported again");
  // File positions are signed in every program that reads one.
  if (node.size > static_cast<std::uint64_t>(INT64_MAX)) return fault_at(offset, "the size is out of range");
  if (head.attributes_count != 0) node.attribute_bytes = static_cast<std::uint32_t>(sizeof(AttributesHeader) + (head.attributes_count - 1U) * 4);
  if (node.body_end() > metadata_bytes()) return fault_at(offset, "the inode's attributes lie beyond the metadata");
  return node;
}

Result<std::vector<Attribute>> Reader::attributes(const StoredInode& node) {
  std::vector<Attribute> found;
  if (node.attribute_bytes == 0) return found;
  std::vector<char> bytes(node.attribute_bytes);
  DSEC_TRY(read_source(0, node.attributes_at(), bytes));
  AttributesHeader header{};
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.shared_count != 0) return unsupported("it has shared attributes");
  for (std::size_t at = sizeof header; at < bytes.size();) {
    const std::uint64_t here = node.attributes_at() + at;
    AttributeEntry entry{};
    if (bytes.size() - at < sizeof entry) return fault_at(here, "an attribute is cut off");
    std::memcpy(&entry, bytes.data() + at, sizeof entry);
    at += sizeof entry;
    const std::size_t length = std::size_t{entry.name_bytes} + entry.value_bytes;
    if (length > bytes.size() - at) return fault_at(here, "an attribute is longer than its inode says");
    const std::string_view prefix = prefix_text(entry.prefix);
    if (prefix.empty()) return fault_at(here, "an attribute of an unknown kind");
    found.push_back({.name = std::string(prefix) + std::string(bytes.data() + at, entry.name_bytes),
                     .value = std::string(bytes.data() + at + entry.name_bytes, entry.value_bytes)});
    at += (length + 3) / 4 * 4;
  }
  return found;
}

Result<std::string> Reader::link_target(const StoredInode& symlink) {
  if (!symlink.is_symlink()) return invalid_argument("not a symbolic link");
  if (symlink.size == 0 || symlink.size > kMaximalTarget) return fault_at(symlink.offset, "a link's target is empty or too long");
  std::string target(static_cast<std::size_t>(symlink.size), '\0');
  DSEC_TRY(read(symlink, 0, target));
  return target;
}

Result<void> Reader::read_source(std::size_t source, std::uint64_t offset, std::span<char> into) {
  if (source >= sources_.size()) return Error(ErrorCode::kUnsupported, "data file " + std::to_string(source) + " is not here");
  return sources_[source]->read(offset, into);
}

}  // namespace dsec::erofs
