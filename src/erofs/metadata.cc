#include "erofs/metadata.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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

// What lies at one place: an inode with all that stands behind it, or the whole
// blocks of a directory or a link.
struct Item {
  std::uint64_t offset = 0;
  std::uint32_t inode = 0;
  bool blocks = false;
};

template <typename T>
void put(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

class MetadataWriter {
 public:
  MetadataWriter(const MetadataPlan& plan, int fd) : plan_(plan), fd_(fd), file_(fd) {}

  Result<std::uint64_t> write() {
    DSEC_TRY(find_addresses());
    put_front();
    DSEC_TRY(file_.append(out_));
    for (const Item& item : items()) {
      const Placed& placed = plan_.layout.inodes()[item.inode];
      DSEC_CHECK(item.offset >= file_.bytes());
      DSEC_TRY(file_.append_zeros(item.offset - file_.bytes()));
      out_.clear();
      item.blocks ? put_blocks(placed) : put_inode(placed);
      DSEC_TRY(file_.append(out_));
      DSEC_TRY(file_.append(tail_));
    }
    DSEC_TRY(file_.pad());
    DSEC_CHECK(file_.bytes() == plan_.layout.blocks() * kBlockBytes);
    DSEC_TRY(file_.finish());
    DSEC_TRY(put_identity());
    return file_.bytes();
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

  // By their places, so that the file is written from its start to its end.
  std::vector<Item> items() const {
    std::vector<Item> out;
    const std::vector<Placed>& inodes = plan_.layout.inodes();
    out.reserve(inodes.size());
    for (std::uint32_t i = 0; i < inodes.size(); i++) {
      out.push_back({inodes[i].offset, i, false});
      if (inodes[i].first_block != kNoBlock) out.push_back({std::uint64_t{inodes[i].first_block} * kBlockBytes, i, true});
    }
    std::sort(out.begin(), out.end(), [](const Item& a, const Item& b) { return a.offset < b.offset; });
    return out;
  }

  std::uint32_t address(const Content& content, std::uint32_t block) const { return addresses_[plan_.devices.slot_of[content.device]] + block; }
  static std::uint64_t nid(const Placed& inode) { return inode.offset / kSlotBytes; }

  void put_inode(const Placed& placed) {
    const Node& node = plan_.tree.node(placed.node);
    const std::vector<StoredAttribute> attributes = stored_attributes(plan_.tree.attributes(placed.node), placed.marks);
    const std::size_t area = attribute_area_bytes(attributes);
    const auto format = static_cast<std::uint16_t>((placed.is_short ? 0 : kExtendedInode) | static_cast<unsigned>(placed.layout) << 1);
    const auto attributes_count = static_cast<std::uint16_t>(area == 0 ? 0 : 1 + (area - sizeof(AttributesHeader)) / 4);
    const auto number = static_cast<std::uint32_t>(nid(placed));
    if (placed.is_short) {
      put(out_, ShortInode{format, attributes_count, node.mode, static_cast<std::uint16_t>(placed.links), static_cast<std::uint32_t>(placed.size), 0,
                           address_of(placed, node), number, static_cast<std::uint16_t>(node.uid), static_cast<std::uint16_t>(node.gid), 0});
    } else {
      put(out_, Inode{format, attributes_count, node.mode, 0, placed.size, address_of(placed, node), number, node.uid, node.gid,
                      static_cast<std::uint64_t>(placed.time.seconds), placed.time.nanoseconds, placed.links, {}});
    }
    if (area != 0) {
      out_.resize(out_.size() + area);
      put_attributes(out_.data() + out_.size() - area, attributes);
    }
    tail_ = {};
    put_behind(placed, node);
  }

  // What Inode::address has to say.
  std::uint32_t address_of(const Placed& placed, const Node& node) const {
    if (!S_ISREG(node.mode)) return S_ISCHR(node.mode) ? 0 : placed.first_block;
    if (node.body == kNone) return kNoBlock;
    const Content& content = plan_.contents.content(node.body);
    switch (content.layout) {
      case Layout::kFlat:
      case Layout::kInline: return content.run.blocks == 0 ? kNoBlock : address(content, content.run.block);
      case Layout::kChunked: return content.chunk_bits | kChunkIndexes;
      case Layout::kCompressed: return content.run.blocks;
    }
    die("unknown layout");
  }

  void put_behind(const Placed& placed, const Node& node) {
    if (S_ISLNK(node.mode) && placed.layout == Layout::kInline) tail_ = plan_.tree.link_text(placed.node);
    if (S_ISDIR(node.mode) && placed.layout == Layout::kInline) put_directory(placed, placed.size / kBlockBytes, placed.size / kBlockBytes + 1);
    if (!S_ISREG(node.mode) || node.body == kNone) return;
    const Content& content = plan_.contents.content(node.body);
    if (content.layout == Layout::kInline) tail_ = content.tail;
    if (content.layout == Layout::kChunked) put_chunks(content);
    if (content.layout == Layout::kCompressed) put_pieces(content);
  }

  void put_blocks(const Placed& placed) {
    tail_ = {};
    if (S_ISLNK(plan_.tree.node(placed.node).mode)) {
      tail_ = plan_.tree.link_text(placed.node);
    } else {
      put_directory(placed, 0, placed.layout == Layout::kInline ? placed.size / kBlockBytes : placed.size / kBlockBytes + 1);
    }
  }

  void align_index() { out_.resize((out_.size() + 7) / 8 * 8); }

  void put_chunks(const Content& content) {
    align_index();
    const std::uint64_t chunk_blocks = 1ULL << content.chunk_bits;
    const std::uint64_t chunks = ((content.bytes + kBlockBytes - 1) / kBlockBytes + chunk_blocks - 1) / chunk_blocks;
    std::vector<ChunkIndex> index(chunks, {.reserved = 0, .device = 0, .block = kNoBlock});
    for (const SparseRun& sparse : content.sparse) {
      for (std::uint64_t done = 0; done < sparse.run.blocks; done += chunk_blocks) {
        index[sparse.chunk + done / chunk_blocks].block = address(content, sparse.run.block + static_cast<std::uint32_t>(done));
      }
    }
    for (const ChunkIndex& one : index) put(out_, one);
  }

  void put_pieces(const Content& content) {
    align_index();
    put(out_, CompressedHeader{.reserved = 0, .advice = kBigPieces, .algorithms = 0, .cluster_bits = 0});
    out_.append(kCompressedIndexGap, '\0');
    std::uint64_t clusters = (content.bytes + kBlockBytes - 1) / kBlockBytes;
    std::uint32_t block = address(content, content.run.block);
    for (const char stored : content.pieces) {
      const auto covered = static_cast<std::uint32_t>(std::min<std::uint64_t>(clusters, kPieceBytes / kBlockBytes));
      for (std::uint32_t i = 0; i < covered; i++) {
        ClusterIndex index{};
        if (stored == 0) {
          index = {static_cast<std::uint16_t>(ClusterType::kPlain), 0, block + i};
        } else if (i == 0) {
          index = {static_cast<std::uint16_t>(ClusterType::kHead), 0, block};
        } else {
          const std::uint32_t back = i == 1 ? kPieceBlocks | static_cast<std::uint8_t>(stored) : i;
          index = {static_cast<std::uint16_t>(ClusterType::kInside), 0, back | (covered - i) << 16};
        }
        put(out_, index);
      }
      block += stored == 0 ? covered : static_cast<std::uint8_t>(stored);
      clusters -= covered;
    }
  }

  // The blocks from `begin` to before `end`, each but the directory's last filled up.
  void put_directory(const Placed& placed, std::uint64_t begin, std::uint64_t end) {
    const std::size_t start = out_.size();
    std::uint64_t block = 0;
    plan_.layout.for_each_block(placed, [&](std::uint32_t first, std::uint32_t last, std::uint32_t) {
      const bool wanted = block >= begin && block < end;
      if (wanted) {
        out_.resize(start + (block - begin) * kBlockBytes);
        put_entries(placed, first, last);
      }
      block++;
    });
  }

  void put_entries(const Placed& placed, std::uint32_t first, std::uint32_t last) {
    const std::uint32_t* entries = plan_.layout.entries(placed);
    std::size_t text_at = (last - first) * sizeof(DirectoryEntry);
    for (std::uint32_t i = first; i < last; i++) {
      const std::uint32_t node = plan_.layout.entry_node(placed, entries[i]);
      put(out_, DirectoryEntry{.nid = nid(plan_.layout.of_node(node)),
                               .name_offset = static_cast<std::uint16_t>(text_at),
                               .type = static_cast<std::uint8_t>(entry_type(plan_.tree.node(node).mode)),
                               .reserved = 0});
      text_at += plan_.layout.entry_text(entries[i]).size();
    }
    for (std::uint32_t i = first; i < last; i++) out_ += plan_.layout.entry_text(entries[i]);
  }

  void put_front() {
    super_.magic = kMagic;
    super_.compatible_features = kChecksum | kModificationTimes;
    super_.block_bits = kBlockBits;
    super_.root_nid = static_cast<std::uint16_t>(nid(plan_.layout.inodes().front()));
    super_.inodes = plan_.layout.inodes().size();
    super_.epoch_seconds = static_cast<std::uint64_t>(plan_.layout.epoch().seconds);
    super_.epoch_nanoseconds = plan_.layout.epoch().nanoseconds;
    super_.blocks = static_cast<std::uint32_t>(plan_.layout.blocks());
    for (const Placed& inode : plan_.layout.inodes()) {
      if (inode.layout == Layout::kCompressed) super_.incompatible_features |= kLz4Padding | kCompressionSettings;
      if (inode.layout == Layout::kChunked) super_.incompatible_features |= kChunkedFiles;
    }
    if ((super_.incompatible_features & kCompressionSettings) != 0) super_.compression = 1;
    if (!plan_.devices.devices.empty()) {
      super_.incompatible_features |= kDeviceTable;
      super_.extra_devices = static_cast<std::uint16_t>(plan_.devices.devices.size());
      super_.device_table_slot = kDeviceTableAt / sizeof(DeviceSlot);
    }
    out_.assign(kSuperblockOffset, '\0');
    put(out_, super_);
    if (super_.compression != 0) put(out_, Lz4Settings{.bytes = 14, .maximal_distance = kLz4Distance, .maximal_piece_blocks = kPieceBytes / kBlockBytes});
    out_.resize(kDeviceTableAt);
    for (std::size_t i = 0; i < plan_.devices.devices.size(); i++) {
      DeviceSlot slot{};
      std::memcpy(slot.tag, plan_.devices.devices[i].digest.data(), sizeof slot.tag);
      slot.blocks = plan_.devices.devices[i].blocks;
      slot.unified_address = addresses_[i];
      put(out_, slot);
    }
  }

  // The UUID is made of all else; the checksum comes last.
  Result<void> put_identity() {
    Sha256 content;
    content.update(file_.digest());
    content.update(plan_.identity);
    std::memcpy(super_.uuid, content.raw().data(), sizeof super_.uuid);
    std::string block(kBlockBytes, '\0');
    if (::pread(fd_, block.data(), block.size(), 0) != static_cast<ssize_t>(block.size())) return errno_error("read the superblock", errno);
    std::memcpy(block.data() + kSuperblockOffset, &super_, sizeof super_);
    super_.checksum = ~crc32c(std::string_view(block).substr(kSuperblockOffset));
    if (::pwrite(fd_, &super_, sizeof super_, kSuperblockOffset) != static_cast<ssize_t>(sizeof super_)) return errno_error("write the superblock", errno);
    return {};
  }

  const MetadataPlan& plan_;
  const int fd_;
  ImageFile file_;
  Superblock super_{};
  std::vector<std::uint32_t> addresses_;  // unified, by device
  std::string out_;                       // the item that is being put together
  std::string_view tail_;                 // what stands behind it, where it is kept
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

Result<std::uint64_t> write_metadata(const MetadataPlan& plan, int fd) { return MetadataWriter(plan, fd).write(); }

}  // namespace dsec::erofs
