// Small images put together by hand, for tests of the reader and the checker:
// they share nothing with the writer but format.h, and every byte of them can
// be found again and broken.
#pragma once

#include <lz4.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "erofs/format.h"

namespace dsec::erofs::test {

template <typename T>
void append(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <typename T>
void put(std::string& out, std::size_t offset, const T& value) {
  std::memcpy(out.data() + offset, &value, sizeof value);
}
template <typename T>
T get(const std::string& bytes, std::size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}
inline void pad(std::string& out, std::size_t to) { out.resize((out.size() + to - 1) / to * to, '\0'); }

// So that a broken field is found for what it is.
inline void fix_checksum(std::string& metadata) {
  const std::size_t field = kSuperblockOffset + offsetof(Superblock, checksum);
  put(metadata, field, std::uint32_t{0});
  put(metadata, field, ~crc32c(std::string_view(metadata).substr(kSuperblockOffset, kBlockBytes - kSuperblockOffset)));
}

class HandMadeImage {
 public:
  using Id = std::size_t;
  static constexpr Id kRoot = 0;

  HandMadeImage() { nodes_.push_back({.mode = 0040755}); }

  Id directory(Id parent, const std::string& name) { return add(parent, name, {.mode = 0040755, .parent = parent}); }
  Id inline_file(Id parent, const std::string& name, const std::string& bytes) {
    return add(parent, name, {.mode = 0100644, .layout = Layout::kInline, .size = bytes.size(), .tail = bytes});
  }
  // Whole blocks in the data, the rest behind the inode.
  Id tailed_file(Id parent, const std::string& name, const std::string& bytes) {
    const std::size_t whole = bytes.size() / kBlockBytes * kBlockBytes;
    const std::uint32_t block = store(bytes.substr(0, whole));
    return add(parent, name, {.mode = 0100644, .layout = Layout::kInline, .size = bytes.size(), .address = block, .in_data = true, .tail = bytes.substr(whole)});
  }
  void make_short(Id node) { nodes_[node].is_short = true; }
  Id empty_file(Id parent, const std::string& name) { return add(parent, name, {.mode = 0100644}); }
  Id symlink(Id parent, const std::string& name, const std::string& target) {
    return add(parent, name, {.mode = 0120777, .layout = Layout::kInline, .size = target.size(), .tail = target});
  }
  Id special(Id parent, const std::string& name, std::uint16_t mode, std::uint32_t device) {
    return add(parent, name, {.mode = mode, .address = device});
  }
  Id flat_file(Id parent, const std::string& name, const std::string& bytes) {
    Node node{.mode = 0100644, .size = bytes.size(), .address = store(bytes), .in_data = true};
    return add(parent, name, std::move(node));
  }
  // The same blocks as another flat file.
  Id copy_of(Id parent, const std::string& name, Id other) {
    Node node = nodes_[other];
    node.links = 0;
    return add(parent, name, std::move(node));
  }
  // Chunks of one block; an empty text is a hole.
  Id chunked_file(Id parent, const std::string& name, const std::vector<std::string>& chunks) {
    Node node{.mode = 0100644, .layout = Layout::kChunked, .size = chunks.size() * kBlockBytes, .address = kChunkIndexes};
    for (const std::string& chunk : chunks) node.chunks.push_back(chunk.empty() ? kNoBlock : store(chunk));
    return add(parent, name, std::move(node));
  }
  // Pieces of 16 blocks; one that does not shrink is stored as it is.
  Id compressed_file(Id parent, const std::string& name, const std::string& bytes) {
    Node node{.mode = 0100644, .layout = Layout::kCompressed, .size = bytes.size()};
    for (std::size_t at = 0; at < bytes.size(); at += 16 * kBlockBytes) add_piece(node, bytes.substr(at, 16 * kBlockBytes));
    return add(parent, name, std::move(node));
  }
  void hard_link(Id parent, const std::string& name, Id node) { name_it(parent, name, node); }
  void attribute(Id node, std::uint8_t prefix, const std::string& name, const std::string& value) {
    std::string& bytes = nodes_[node].attributes;
    if (bytes.empty()) append(bytes, AttributesHeader{});
    append(bytes, AttributeEntry{static_cast<std::uint8_t>(name.size()), prefix, static_cast<std::uint16_t>(value.size())});
    bytes += name + value;
    pad(bytes, 4);
  }

  void build() {
    lay_out();
    metadata_.assign(end_, '\0');
    for (Id id = 0; id < nodes_.size(); ++id) write_node(nodes_[id]);
    write_superblock();
    fix_checksum(metadata_);
  }
  // After build().
  const std::string& metadata() const { return metadata_; }
  const std::string& data() const { return data_; }
  std::size_t offset_of(Id id) const { return nodes_[id].offset; }
  // Of what stands behind inode and attributes: tail, index or the only block of a directory.
  std::size_t body_of(Id id) const { return body(nodes_[id]); }

 private:
  struct Node {
    std::uint16_t mode = 0;
    Layout layout = Layout::kFlat;
    std::uint64_t size = 0;
    std::uint32_t address = kNoBlock;
    bool is_short = false;
    bool in_data = false;  // address counts from the start of the data
    std::string tail;
    std::string attributes;
    std::vector<std::uint32_t> chunks;
    std::vector<ClusterIndex> clusters;
    std::map<std::string, Id> names;
    Id parent = 0;
    std::uint32_t links = 0;
    std::size_t offset = 0;
  };

  static EntryType type_of(const Node& node) {
    static const std::map<int, EntryType> types = {{0100000, EntryType::kFile}, {0040000, EntryType::kDirectory}, {0020000, EntryType::kCharacterDevice},
                                                   {0060000, EntryType::kBlockDevice}, {0010000, EntryType::kFifo}, {0140000, EntryType::kSocket},
                                                   {0120000, EntryType::kSymlink}};
    return types.at(node.mode & 0170000);
  }
  static bool is_directory(const Node& node) { return (node.mode & 0170000) == 0040000; }

  Id add(Id parent, const std::string& name, Node node) {
    nodes_.push_back(std::move(node));
    name_it(parent, name, nodes_.size() - 1);
    return nodes_.size() - 1;
  }
  void name_it(Id parent, const std::string& name, Id node) {
    nodes_[parent].names[name] = node;
    nodes_[node].links++;
  }
  std::uint32_t store(const std::string& bytes) {
    const auto block = static_cast<std::uint32_t>(data_.size() / kBlockBytes);
    data_ += bytes;
    pad(data_, kBlockBytes);
    return block;
  }
  void add_piece(Node& node, const std::string& bytes) {
    std::string packed(static_cast<std::size_t>(LZ4_compressBound(static_cast<int>(bytes.size()))), '\0');
    packed.resize(static_cast<std::size_t>(LZ4_compress_default(bytes.data(), packed.data(), static_cast<int>(bytes.size()), static_cast<int>(packed.size()))));
    const std::size_t covers = (bytes.size() + kBlockBytes - 1) / kBlockBytes;
    const std::size_t stored = (packed.size() + kBlockBytes - 1) / kBlockBytes;
    const bool shrinks = stored < covers;
    const std::uint32_t block = store(shrinks ? std::string(stored * kBlockBytes - packed.size(), '\0') + packed : bytes);
    for (std::size_t i = 0; i < covers; ++i) {
      ClusterIndex index{.advice = static_cast<std::uint16_t>(!shrinks ? ClusterType::kPlain : i == 0 ? ClusterType::kHead : ClusterType::kInside)};
      index.place = static_cast<std::uint32_t>(!shrinks ? block + i : i == 0 ? block : ((covers - i) << 16 | (i == 1 ? kPieceBlocks | stored : i)));
      node.clusters.push_back(index);
    }
    node.address = (node.address == kNoBlock ? 0 : node.address) + static_cast<std::uint32_t>(shrinks ? stored : covers);
  }

  static std::size_t body(const Node& node) {
    const std::size_t end = node.offset + (node.is_short ? sizeof(ShortInode) : sizeof(Inode)) + node.attributes.size();
    return node.layout == Layout::kChunked || node.layout == Layout::kCompressed ? (end + 7) / 8 * 8 : end;
  }
  static std::size_t end_of(const Node& node) {
    const std::size_t index = node.chunks.size() * sizeof(ChunkIndex) +
                              (node.clusters.empty() ? 0 : sizeof(CompressedHeader) + kCompressedIndexGap + node.clusters.size() * sizeof(ClusterIndex));
    return body(node) + index + node.tail.size();
  }
  void lay_out() {
    std::size_t at = kBlockBytes;
    for (Node& node : nodes_) {
      if (is_directory(node)) {
        std::vector<std::string> blocks = directory_blocks(node);  // for the sizes; the numbers come later
        node.size = (blocks.size() - 1) * kBlockBytes + blocks.back().size();
        node.layout = blocks.size() == 1 && blocks[0].size() < kBlockBytes / 2 ? Layout::kInline : Layout::kFlat;
        node.tail = node.layout == Layout::kInline ? blocks[0] : "";
        node.links = 2 + static_cast<std::uint32_t>(std::count_if(node.names.begin(), node.names.end(), [&](const auto& name) { return is_directory(nodes_[name.second]); }));
      }
      node.offset = (at + kSlotBytes - 1) / kSlotBytes * kSlotBytes;
      if (!node.tail.empty() && body(node) / kBlockBytes != (end_of(node) - 1) / kBlockBytes) node.offset = (at + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
      at = end_of(node);
    }
    for (Node& node : nodes_) {
      if (!is_directory(node) || node.layout != Layout::kFlat) continue;
      at = (at + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
      node.address = static_cast<std::uint32_t>(at / kBlockBytes);
      at += static_cast<std::size_t>(node.size);
    }
    end_ = (at + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  }

  std::vector<std::string> directory_blocks(const Node& node) const {
    std::vector<std::pair<std::string, const Node*>> entries = {{".", &node}, {"..", &nodes_[node.parent]}};
    for (const auto& [name, id] : node.names) entries.emplace_back(name, &nodes_[id]);
    std::sort(entries.begin(), entries.end());
    std::vector<std::string> blocks;
    for (std::size_t first = 0; first < entries.size();) {
      std::size_t last = first;
      std::size_t bytes = 0;
      for (; last < entries.size() && bytes + sizeof(DirectoryEntry) + entries[last].first.size() <= kBlockBytes; ++last)
        bytes += sizeof(DirectoryEntry) + entries[last].first.size();
      std::string block;
      std::size_t name_at = (last - first) * sizeof(DirectoryEntry);
      for (std::size_t i = first; i < last; ++i) {
        append(block, DirectoryEntry{.nid = entries[i].second->offset / kSlotBytes, .name_offset = static_cast<std::uint16_t>(name_at),
                                     .type = static_cast<std::uint8_t>(type_of(*entries[i].second))});
        name_at += entries[i].first.size();
      }
      for (std::size_t i = first; i < last; ++i) block += entries[i].first;
      blocks.push_back(std::move(block));
      first = last;
    }
    return blocks;
  }

  std::uint32_t data_start() const { return static_cast<std::uint32_t>(end_ / kBlockBytes); }
  void write_node(Node& node) {
    if (is_directory(node)) {
      std::vector<std::string> blocks = directory_blocks(node);
      if (node.layout == Layout::kInline) node.tail = blocks[0];
      else
        for (std::size_t i = 0; i < blocks.size(); ++i) metadata_.replace((node.address + i) * kBlockBytes, blocks[i].size(), blocks[i]);
    }
    std::string bytes;
    const auto format = static_cast<std::uint16_t>((node.is_short ? 0 : kExtendedInode) | static_cast<unsigned>(node.layout) << 1);
    const auto count = static_cast<std::uint16_t>(node.attributes.empty() ? 0 : (node.attributes.size() - sizeof(AttributesHeader)) / 4 + 1);
    const std::uint32_t address = node.in_data ? node.address + data_start() : node.address;
    const auto number = static_cast<std::uint32_t>(node.offset / kSlotBytes);
    if (node.is_short) {
      append(bytes, ShortInode{.format = format, .attributes_count = count, .mode = node.mode, .links = static_cast<std::uint16_t>(node.links),
                               .size = static_cast<std::uint32_t>(node.size), .address = address, .number = number, .uid = 7, .gid = 9});
    } else {
      append(bytes, Inode{.format = format, .attributes_count = count, .mode = node.mode, .size = node.size, .address = address, .number = number, .uid = 7,
                          .gid = 70'000, .seconds = 1'700'000'000, .nanoseconds = 5, .links = node.links});
    }
    bytes += node.attributes;
    if (!node.chunks.empty() || !node.clusters.empty()) pad(bytes, 8);
    for (const std::uint32_t chunk : node.chunks) append(bytes, ChunkIndex{.block = chunk == kNoBlock ? chunk : chunk + data_start()});
    if (!node.clusters.empty()) {
      append(bytes, CompressedHeader{.advice = kBigPieces});
      append(bytes, std::uint64_t{0});
    }
    for (ClusterIndex index : node.clusters) {
      if (index.advice != static_cast<std::uint16_t>(ClusterType::kInside)) index.place += data_start();
      append(bytes, index);
    }
    bytes += node.tail;
    metadata_.replace(node.offset, bytes.size(), bytes);
  }
  void write_superblock() {
    constexpr std::uint16_t kTableSlot = 10;  // byte 1280
    put(metadata_, kSuperblockOffset,
        Superblock{.magic = kMagic, .compatible_features = kChecksum, .block_bits = kBlockBits, .root_nid = static_cast<std::uint16_t>(nodes_[kRoot].offset / kSlotBytes),
                   .inodes = nodes_.size(), .epoch_seconds = 1'600'000'000, .epoch_nanoseconds = 7, .blocks = data_start(), .incompatible_features = kLz4Padding | kCompressionSettings | kChunkedFiles | kDeviceTable,
                   .compression = 1, .extra_devices = 1, .device_table_slot = kTableSlot});
    put(metadata_, kSuperblockOffset + sizeof(Superblock), Lz4Settings{.bytes = 14, .maximal_distance = kLz4Distance, .maximal_piece_blocks = 16});
    DeviceSlot slot{.blocks = static_cast<std::uint32_t>(data_.size() / kBlockBytes), .unified_address = data_start()};
    std::memset(slot.tag, 'a', sizeof slot.tag);
    put(metadata_, kTableSlot * sizeof(DeviceSlot), slot);
  }

  std::vector<Node> nodes_;
  std::string data_;
  std::string metadata_;
  std::size_t end_ = 0;
};

inline std::string pattern(std::size_t bytes, unsigned seed) {
  std::string out(bytes, '\0');
  for (char& c : out) c = static_cast<char>((seed = seed * 1103515245 + 12345) >> 20);
  return out;
}

// Of revision 2, with nothing granted.
inline std::string capability() { return std::string("\0\0\0\2", 4) + std::string(16, '\0'); }

// One of everything that an image may hold.
inline HandMadeImage rich_image(std::size_t packed_bytes = 100'000) {
  HandMadeImage image;
  const auto etc = image.directory(HandMadeImage::kRoot, "etc");
  const auto deep = image.directory(etc, "deep");
  image.inline_file(etc, "passwd", "root:x:0:0\n");
  const auto flat = image.flat_file(deep, "flat", pattern(9000, 1));
  image.copy_of(HandMadeImage::kRoot, "twin", flat);
  image.make_short(image.tailed_file(deep, "tailed", pattern(4200, 5)));
  image.chunked_file(HandMadeImage::kRoot, "sparse", {pattern(4096, 2), "", "", pattern(4096, 3)});
  image.compressed_file(HandMadeImage::kRoot, "packed", std::string(packed_bytes, 'a') + pattern(packed_bytes / 10 * 7, 4));
  image.symlink(HandMadeImage::kRoot, "link", "etc/passwd");
  image.empty_file(deep, "empty");
  image.special(deep, "gone", 0020000, 0);
  image.special(deep, "pipe", 0010600, 0);
  const auto twice = image.inline_file(deep, "one", "two names");
  image.hard_link(etc, "two", twice);
  image.attribute(twice, kUserPrefix, "note", "hello");
  image.attribute(deep, kTrustedPrefix, "overlay.opaque", "y");
  image.attribute(flat, kSecurityPrefix, "capability", capability());
  const auto many = image.directory(HandMadeImage::kRoot, "many");
  for (int i = 100; i < 160; ++i) image.empty_file(many, std::string(60, 'n') + std::to_string(i));
  image.build();
  return image;
}

}  // namespace dsec::erofs::test
