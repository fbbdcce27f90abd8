// Reads our EROFS images without the kernel, for who looks into a layer, and as
// the tests' second opinion about what the writer wrote.
//
// Every number in an image may be a lie. Each is checked against the size of
// the file that it points into before anything is read or allocated; nothing
// here recurses; the answer to a lie is kDataFault with the byte where it
// stands, to a form that we do not write kUnsupported. That an image *as a
// whole* makes sense (no cycles, no overlaps) is the checker's to say.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "erofs/format.h"
#include "erofs/source.h"

namespace dsec::erofs {

// An inode as it was read, with where it stands.
struct StoredInode {
  std::uint64_t nid = 0;
  std::uint64_t offset = 0;  // of the inode in the metadata
  Layout layout = Layout::kFlat;
  std::uint32_t mode = 0;    // type and permissions, as stat(2)
  std::uint64_t size = 0;
  std::uint32_t address = 0;
  std::uint32_t uid = 0;
  std::uint32_t gid = 0;
  std::uint32_t links = 0;
  std::int64_t seconds = 0;
  std::uint32_t nanoseconds = 0;
  std::uint32_t attribute_bytes = 0;
  std::uint32_t number = 0;       // as the inode says it
  std::uint32_t inode_bytes = 0;  // of an Inode or a ShortInode

  std::uint64_t attributes_at() const { return offset + inode_bytes; }
  std::uint64_t body_end() const { return attributes_at() + attribute_bytes; }
  std::uint64_t blocks() const { return size / kBlockBytes + (size % kBlockBytes != 0 ? 1 : 0); }
  bool is_directory() const { return (mode & 0170000) == 0040000; }
  bool is_file() const { return (mode & 0170000) == 0100000; }
  bool is_symlink() const { return (mode & 0170000) == 0120000; }
  bool is_device() const { return (mode & 0170000) == 0020000 || (mode & 0170000) == 0060000; }
  std::uint32_t device_major() const { return (address >> 8) & 0xFFF; }
  std::uint32_t device_minor() const { return (address & 0xFF) | ((address >> 12) & 0xFFF00); }
};

struct Attribute {
  std::string name;  // "security.capability"
  std::string value;
  bool operator==(const Attribute&) const = default;
};

// One block of a directory. The names point into `bytes`, so it moves and is not copied.
struct DirectoryBlock {
  DirectoryBlock() = default;
  DirectoryBlock(DirectoryBlock&&) = default;
  DirectoryBlock& operator=(DirectoryBlock&&) = default;

  struct Entry {
    std::uint64_t nid = 0;
    std::uint8_t type = 0;
    std::string_view name;
  };
  std::vector<char> bytes;
  std::vector<Entry> entries;
  std::size_t names_end = 0;  // in the block; zeros follow
};

// A run of a file's bytes, and where they are kept.
struct Extent {
  enum class Kind { kHole, kPlain, kLz4 };
  Kind kind = Kind::kHole;
  std::uint64_t at = 0;      // in the file
  std::uint64_t length = 0;  // of the file; at least 1
  std::size_t source = 0;    // 0: the metadata, n: device n
  std::uint64_t offset = 0;  // there
  std::uint64_t stored = 0;  // bytes there; `length` but for kLz4
  // The same bytes for sure, without reading them.
  bool same_place(const Extent& other) const { return kind == other.kind && length == other.length && offset == other.offset && stored == other.stored; }
};

// One thread at a time.
class Reader {
 public:
  // `devices` in the order of the device table; none for metadata and data in
  // one file, and where no content will be read.
  static Result<Reader> open(std::unique_ptr<Source> metadata, std::vector<std::unique_ptr<Source>> devices = {});

  const Superblock& superblock() const { return superblock_; }
  const std::vector<DeviceSlot>& devices() const { return slots_; }
  std::uint64_t metadata_bytes() const { return sources_[0]->size(); }

  Result<StoredInode> node(std::uint64_t nid);
  Result<StoredInode> root() { return node(superblock_.root_nid); }
  // Absolute; "." is passed over, ".." refused, links are not followed. kNotFound.
  Result<StoredInode> lookup(std::string_view path);
  // Goes by the order of names, as the kernel does. nullopt when there is no such name.
  Result<std::optional<DirectoryBlock::Entry>> find(const StoredInode& directory, std::string_view name, DirectoryBlock& block);
  // Block `index` of directory.blocks().
  Result<DirectoryBlock> directory_block(const StoredInode& directory, std::uint64_t index);
  Result<std::vector<Attribute>> attributes(const StoredInode& node);
  Result<std::string> link_target(const StoredInode& symlink);

  // The run that holds byte `offset`, which is below node.size.
  Result<Extent> extent(const StoredInode& node, std::uint64_t offset);
  // Content from `offset`: as many bytes as fit or are left.
  Result<std::size_t> read(const StoredInode& node, std::uint64_t offset, std::span<char> into);
  // Bytes of a source as they are.
  Result<void> read_source(std::size_t source, std::uint64_t offset, std::span<char> into);
  // A structure of format.h, from the metadata.
  template <typename T>
  Result<T> load(std::uint64_t offset) {
    T value{};
    DSEC_TRY(read_source(0, offset, std::span(reinterpret_cast<char*>(&value), sizeof value)));
    return value;
  }

 private:
  explicit Reader(std::vector<std::unique_ptr<Source>> sources) : sources_(std::move(sources)) {}
  Result<void> read_superblock();
  struct Place {
    std::size_t source;
    std::uint64_t offset;
    std::uint64_t left;  // bytes from there to the end of that source's part of the space
  };
  Result<Place> place(std::uint64_t block, std::size_t device) const;
  Result<Extent> plain(const StoredInode& node, std::uint64_t at, std::uint64_t length, std::uint64_t block, std::size_t device) const;
  Result<Extent> inline_extent(const StoredInode& node, std::uint64_t offset) const;
  Result<Extent> chunk_extent(const StoredInode& node, std::uint64_t offset);
  Result<Extent> compressed_extent(const StoredInode& node, std::uint64_t offset);
  Result<void> unpack(const Extent& extent);

  std::vector<std::unique_ptr<Source>> sources_;  // metadata first
  Superblock superblock_{};
  std::vector<DeviceSlot> slots_;
  // The piece that was unpacked last: sequential reads meet it again.
  std::size_t piece_source_ = 0;
  std::uint64_t piece_offset_ = 0;
  std::vector<char> piece_;
};

// kDataFault: what is wrong, and at which byte of the metadata.
Error fault_at(std::uint64_t offset, std::string_view what);
// Where the index behind an inode starts (chunks), and its entries.
std::uint64_t chunk_count(const StoredInode& node);
std::uint64_t index_at(const StoredInode& node);
// Of one compressed piece, in the file and stored.
inline constexpr std::uint64_t kMaximalPieceBlocks = 256;

}  // namespace dsec::erofs
