#include "erofs/metadata.h"

#include <sys/stat.h>

#include <cstring>

#include "base/crc32c.h"
#include "erofs/digest.h"

namespace dsec::erofs {

namespace {

constexpr std::uint32_t kDeviceTableAt = (kSuperblockOffset + sizeof(Superblock) + sizeof(Lz4Settings) + sizeof(DeviceSlot) - 1) / sizeof(DeviceSlot) * sizeof(DeviceSlot);

EntryType entry_type(std::uint16_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG: return EntryType::kFile;
    case S_IFDIR: return EntryType::kDirectory;
    case S_IFLNK: return EntryType::kSymlink;
    case S_IFCHR: return EntryType::kCharacterDevice;
    case S_IFIFO: return EntryType::kFifo;
    default: die("an entry of a type that no image has");
  }
}

class Maker {
 public:
  explicit Maker(const MetadataPlan& plan) : plan_(plan), out_(plan.layout.blocks() * kBlockBytes, '\0') {}

  Result<std::string> make() {
    DSEC_TRY(find_addresses());
    for (const Placed& inode : plan_.layout.inodes()) put_inode(inode);
    put_front();
    return std::move(out_);
  }

 private:
  Result<void> find_addresses() {
    std::uint64_t next = plan_.layout.blocks();
    for (const Device& device : plan_.devices.devices) {
      addresses_.push_back(static_cast<std::uint32_t>(next));
      next += device.blocks;
      if (next >= kNoBlock) return Error(ErrorCode::kTooLarge, "the image and its parents pass 16 TiB");
    }
    return {};
  }

  template <typename T>
  void put(std::uint64_t offset, const T& value) {
    DSEC_CHECK(offset + sizeof value <= out_.size());
    std::memcpy(out_.data() + offset, &value, sizeof value);
  }
  void put_text(std::uint64_t offset, std::string_view text) {
    DSEC_CHECK(offset + text.size() <= out_.size());
    std::memcpy(out_.data() + offset, text.data(), text.size());
  }
  std::uint32_t address(const Content& content, std::uint32_t block) const { return addresses_[plan_.devices.slot_of[content.device]] + block; }
  static std::uint64_t nid(const Placed& inode) { return inode.offset / kSlotBytes; }

  void put_inode(const Placed& placed) {
    const Node& node = plan_.tree.node(placed.node);
    const std::vector<StoredAttribute> attributes = stored_attributes(plan_.tree.attributes(placed.node), placed.marks);
    const std::size_t area = attribute_area_bytes(attributes);
    Inode inode{};
    inode.format = static_cast<std::uint16_t>(kExtendedInode | static_cast<unsigned>(placed.layout) << 1);
    inode.attributes_count = static_cast<std::uint16_t>(area == 0 ? 0 : 1 + (area - sizeof(AttributesHeader)) / 4);
    inode.mode = node.mode;
    inode.size = placed.size;
    inode.number = static_cast<std::uint32_t>(nid(placed));
    inode.uid = node.uid;
    inode.gid = node.gid;
    const bool timed = !S_ISDIR(node.mode) || node.stated;
    inode.seconds = static_cast<std::uint64_t>(timed ? node.seconds : plan_.unstated_seconds);
    inode.nanoseconds = timed ? node.nanoseconds : 0;
    inode.links = placed.links;
    const std::uint64_t behind = placed.offset + sizeof(Inode) + area;
    inode.address = put_body(placed, node, behind);
    put(placed.offset, inode);
    put_attributes(out_.data() + placed.offset + sizeof(Inode), attributes);
  }

  // What Inode::address has to say.
  std::uint32_t put_body(const Placed& placed, const Node& node, std::uint64_t behind) {
    switch (node.mode & S_IFMT) {
      case S_IFDIR: put_directory(placed, behind); return placed.first_block;
      case S_IFLNK:
        put_text(placed.layout == Layout::kInline ? behind : std::uint64_t{placed.first_block} * kBlockBytes, plan_.tree.link_text(placed.node));
        return placed.first_block;
      case S_IFREG: return node.body == kNone ? kNoBlock : put_content(plan_.contents.content(node.body), behind);
      case S_IFCHR: return 0;
      default: return kNoBlock;
    }
  }

  std::uint32_t put_content(const Content& content, std::uint64_t behind) {
    switch (content.layout) {
      case Layout::kFlat: return address(content, content.run.block);
      case Layout::kInline: put_text(behind, plan_.contents.inline_bytes(content)); return kNoBlock;
      case Layout::kChunked: put_chunks(content, (behind + 7) / 8 * 8); return content.chunk_bits | kChunkIndexes;
      case Layout::kCompressed: put_pieces(content, (behind + 7) / 8 * 8); return content.run.blocks;
    }
    die("unknown layout");
  }

  void put_chunks(const Content& content, std::uint64_t at) {
    const std::uint64_t chunk_blocks = 1ULL << content.chunk_bits;
    const std::uint64_t chunks = ((content.bytes + kBlockBytes - 1) / kBlockBytes + chunk_blocks - 1) / chunk_blocks;
    for (std::uint64_t i = 0; i < chunks; i++) put(at + i * sizeof(ChunkIndex), ChunkIndex{.reserved = 0, .device = 0, .block = kNoBlock});
    for (const SparseRun& sparse : content.sparse) {
      for (std::uint64_t done = 0; done < sparse.run.blocks; done += chunk_blocks) {
        const std::uint64_t chunk = sparse.chunk + done / chunk_blocks;
        put(at + chunk * sizeof(ChunkIndex), ChunkIndex{.reserved = 0, .device = 0, .block = address(content, sparse.run.block + static_cast<std::uint32_t>(done))});
      }
    }
  }

  void put_pieces(const Content& content, std::uint64_t at) {
    put(at, CompressedHeader{.reserved = 0, .advice = kBigPieces, .algorithms = 0, .cluster_bits = 0});
    at += sizeof(CompressedHeader) + kCompressedIndexGap;
    std::uint64_t clusters = (content.bytes + kBlockBytes - 1) / kBlockBytes;
    std::uint32_t block = address(content, content.run.block);
    for (const char stored : content.pieces) {
      const auto covered = static_cast<std::uint32_t>(std::min<std::uint64_t>(clusters, kPieceBytes / kBlockBytes));
      for (std::uint32_t i = 0; i < covered; i++, at += sizeof(ClusterIndex)) {
        ClusterIndex index{};
        if (stored == 0) {
          index = {static_cast<std::uint16_t>(ClusterType::kPlain), 0, block + i};
        } else if (i == 0) {
          index = {static_cast<std::uint16_t>(ClusterType::kHead), 0, block};
        } else {
          const std::uint32_t back = i == 1 ? kPieceBlocks | static_cast<std::uint8_t>(stored) : i;
          index = {static_cast<std::uint16_t>(ClusterType::kInside), 0, back | (covered - i) << 16};
        }
        put(at, index);
      }
      block += stored == 0 ? covered : static_cast<std::uint8_t>(stored);
      clusters -= covered;
    }
  }

  void put_directory(const Placed& placed, std::uint64_t behind) {
    const std::uint64_t whole = placed.layout == Layout::kInline ? placed.size / kBlockBytes : placed.size / kBlockBytes + 1;
    std::uint64_t block = 0;
    plan_.layout.for_each_block(placed, [&](std::uint32_t first, std::uint32_t last, std::uint32_t) {
      const std::uint64_t at = block < whole ? (placed.first_block + block) * kBlockBytes : behind;
      block++;
      std::uint64_t text_at = (last - first) * sizeof(DirectoryEntry);
      for (std::uint32_t i = first; i < last; i++) {
        const std::uint32_t id = plan_.layout.entries(placed)[i];
        const std::string_view text = plan_.layout.entry_text(id);
        const std::uint32_t node = plan_.layout.entry_node(placed, id);
        put(at + (i - first) * sizeof(DirectoryEntry), DirectoryEntry{.nid = nid(plan_.layout.of_node(node)),
                                                                      .name_offset = static_cast<std::uint16_t>(text_at),
                                                                      .type = static_cast<std::uint8_t>(entry_type(plan_.tree.node(node).mode)),
                                                                      .reserved = 0});
        put_text(at + text_at, text);
        text_at += text.size();
      }
    });
  }

  void put_front() {
    Superblock super{};
    super.magic = kMagic;
    super.compatible_features = kChecksum | kModificationTimes;
    super.block_bits = kBlockBits;
    super.root_nid = static_cast<std::uint16_t>(nid(plan_.layout.inodes().front()));
    super.inodes = plan_.layout.inodes().size();
    super.blocks = static_cast<std::uint32_t>(plan_.layout.blocks());
    for (const Placed& inode : plan_.layout.inodes()) {
      if (inode.layout == Layout::kCompressed) super.incompatible_features |= kLz4Padding | kCompressionSettings;
      if (inode.layout == Layout::kChunked) super.incompatible_features |= kChunkedFiles;
    }
    if ((super.incompatible_features & kCompressionSettings) != 0) {
      super.compression = 1;
      put(kSuperblockOffset + sizeof super, Lz4Settings{.bytes = 14, .maximal_distance = kLz4Distance, .maximal_piece_blocks = kPieceBytes / kBlockBytes});
    }
    if (!plan_.devices.devices.empty()) {
      super.incompatible_features |= kDeviceTable;
      super.extra_devices = static_cast<std::uint16_t>(plan_.devices.devices.size());
      super.device_table_slot = kDeviceTableAt / sizeof(DeviceSlot);
    }
    for (std::size_t i = 0; i < plan_.devices.devices.size(); i++) {
      DeviceSlot slot{};
      std::memcpy(slot.tag, plan_.devices.devices[i].digest.data(), sizeof slot.tag);
      slot.blocks = plan_.devices.devices[i].blocks;
      slot.unified_address = addresses_[i];
      put(kDeviceTableAt + i * sizeof slot, slot);
    }
    put(kSuperblockOffset, super);

    Sha256 content;
    content.update(out_);
    content.update(plan_.identity);
    std::memcpy(super.uuid, content.raw().data(), sizeof super.uuid);
    put(kSuperblockOffset, super);
    super.checksum = ~crc32c(std::string_view(out_).substr(kSuperblockOffset, kBlockBytes - kSuperblockOffset));
    put(kSuperblockOffset, super);
  }

  const MetadataPlan& plan_;
  std::vector<std::uint32_t> addresses_;  // unified, by device
  std::string out_;
};

}  // namespace

DeviceList list_devices(const ContentStore& contents, const std::vector<bool>& used) {
  DeviceList list;
  std::vector<bool> wanted(contents.parents().size() + 1, false);
  wanted[0] = contents.data().bytes() != 0;
  for (std::uint32_t id = 0; id < used.size(); id++) {
    const Content& content = contents.content(id);
    if (used[id] && content.device != 0) wanted[content.device] = true;
  }
  list.slot_of.assign(wanted.size(), 0);
  for (std::size_t device = 0; device < wanted.size(); device++) {
    if (!wanted[device]) continue;
    list.slot_of[device] = static_cast<std::uint32_t>(list.devices.size());
    if (device == 0) {
      list.devices.push_back({contents.data().digest(), static_cast<std::uint32_t>(contents.data().bytes() / kBlockBytes)});
    } else {
      const ParentData& parent = contents.parents()[device - 1];
      list.devices.push_back({parent.digest, parent.blocks});
    }
  }
  return list;
}

std::uint32_t front_bytes(std::size_t devices) { return kDeviceTableAt + static_cast<std::uint32_t>(devices * sizeof(DeviceSlot)); }

Result<std::string> make_metadata(const MetadataPlan& plan) { return Maker(plan).make(); }

}  // namespace dsec::erofs
