// EROFS on disk: the structures and constants that our images are made of.
//
// Only what the writer emits and the reader accepts: 4 KiB blocks, both
// sizes of inodes, flat, inline, chunked and LZ4 (full index) file layouts, and one
// device slot for each data file. All numbers are little-endian, as the host is.
// Addresses are in blocks of one space: the metadata file from 0, then each
// device at its slot's unified_address.
#pragma once

#include <bit>
#include <cstdint>

namespace dsec::erofs {

static_assert(std::endian::native == std::endian::little);

inline constexpr std::uint32_t kMagic = 0xE0F5E1E2;
inline constexpr std::uint32_t kBlockBits = 12;
inline constexpr std::uint32_t kBlockBytes = 1U << kBlockBits;
inline constexpr std::uint32_t kNoBlock = 0xFFFFFFFF;  // no data, or a hole
inline constexpr std::uint64_t kSuperblockOffset = 1024;
inline constexpr std::uint32_t kSlotBytes = 32;        // an inode's offset is 32 * its nid
inline constexpr std::uint32_t kMaximalDevices = 16;   // ours; the kernel's is larger
inline constexpr std::uint32_t kMaximalNameBytes = 255;

// Superblock::compatible_features
inline constexpr std::uint32_t kChecksum = 0x1;
inline constexpr std::uint32_t kModificationTimes = 0x2;
// Superblock::incompatible_features
inline constexpr std::uint32_t kLz4Padding = 0x1;           // compressed bytes end at the block's end
inline constexpr std::uint32_t kCompressionSettings = 0x2;  // and pieces of more than one block
inline constexpr std::uint32_t kChunkedFiles = 0x4;
inline constexpr std::uint32_t kDeviceTable = 0x8;

struct Superblock {
  std::uint32_t magic;
  std::uint32_t checksum;  // CRC-32C, not inverted at the end, of [1024, 4096) with this field 0
  std::uint32_t compatible_features;
  std::uint8_t block_bits;
  std::uint8_t extension_slots;
  std::uint16_t root_nid;
  std::uint64_t inodes;
  std::uint64_t epoch_seconds;
  std::uint32_t epoch_nanoseconds;
  std::uint32_t blocks;  // of the metadata file
  std::uint32_t metadata_block;
  std::uint32_t shared_attributes_block;
  std::uint8_t uuid[16];
  std::uint8_t volume_name[16];
  std::uint32_t incompatible_features;
  std::uint16_t compression;  // with kCompressionSettings: a bit for each algorithm, LZ4 is bit 0
  std::uint16_t extra_devices;
  std::uint16_t device_table_slot;  // in units of DeviceSlot from the start of the file
  std::uint8_t directory_block_bits;
  std::uint8_t attribute_prefixes;
  std::uint32_t attribute_prefix_start;
  std::uint64_t packed_nid;
  std::uint8_t attribute_filter;
  std::uint8_t reserved[23];
};
static_assert(sizeof(Superblock) == 128);

// Behind the superblock when kCompressionSettings is set and LZ4 is used.
struct Lz4Settings {
  std::uint16_t bytes;  // of what follows: 14
  std::uint16_t maximal_distance;
  std::uint16_t maximal_piece_blocks;
  std::uint8_t reserved[10];
};
static_assert(sizeof(Lz4Settings) == 16);
inline constexpr std::uint16_t kLz4Distance = 65535;

struct DeviceSlot {
  char tag[64];  // SHA-256 of the data file in lower-case hex digits
  std::uint32_t blocks;
  std::uint32_t unified_address;
  std::uint8_t reserved[56];
};
static_assert(sizeof(DeviceSlot) == 128);

enum class Layout : std::uint8_t {
  kFlat = 0,        // whole blocks from `address`; also the empty file
  kCompressed = 1,  // CompressedHeader, 8 bytes of zeros, one ClusterIndex for each 4 KiB
  kInline = 2,      // flat, and the part behind the last whole block behind the inode
  kChunked = 4,     // one ChunkIndex for each chunk
};

struct Inode {
  std::uint16_t format;  // kExtendedInode | Layout << 1
  std::uint16_t attributes_count;  // 0, or 1 + (size of the attribute area - 12) / 4
  std::uint16_t mode;
  std::uint16_t reserved;
  std::uint64_t size;
  // By layout and type: first block or kNoBlock, number of compressed blocks,
  // ChunkFormat, or device number.
  std::uint32_t address;
  std::uint32_t number;  // what stat says
  std::uint32_t uid;
  std::uint32_t gid;
  std::uint64_t seconds;
  std::uint32_t nanoseconds;
  std::uint32_t links;
  std::uint8_t reserved_end[16];
};
static_assert(sizeof(Inode) == 64);
inline constexpr std::uint16_t kExtendedInode = 1;

// The same for whoever needs no more: its time is the superblock's epoch.
struct ShortInode {
  std::uint16_t format;
  std::uint16_t attributes_count;
  std::uint16_t mode;
  std::uint16_t links;
  std::uint32_t size;
  std::uint32_t reserved;
  std::uint32_t address;
  std::uint32_t number;
  std::uint16_t uid;
  std::uint16_t gid;
  std::uint32_t reserved_end;
};
static_assert(sizeof(ShortInode) == 32);

// Behind the inode when it has attributes; entries follow, each padded to 4 bytes.
struct AttributesHeader {
  std::uint32_t name_filter;
  std::uint8_t shared_count;
  std::uint8_t reserved[7];
};
static_assert(sizeof(AttributesHeader) == 12);

struct AttributeEntry {
  std::uint8_t name_bytes;  // without the prefix
  std::uint8_t prefix;
  std::uint16_t value_bytes;
};
static_assert(sizeof(AttributeEntry) == 4);
inline constexpr std::uint8_t kUserPrefix = 1;      // "user."
inline constexpr std::uint8_t kTrustedPrefix = 4;   // "trusted."
inline constexpr std::uint8_t kSecurityPrefix = 6;  // "security."

// A directory's blocks: entries, then their names without end marks. Names are
// in byte order over the whole directory, "." and ".." among them.
#pragma pack(push, 1)
struct DirectoryEntry {
  std::uint64_t nid;
  std::uint16_t name_offset;  // in the block; the first one tells the number of entries
  std::uint8_t type;
  std::uint8_t reserved;
};
#pragma pack(pop)
static_assert(sizeof(DirectoryEntry) == 12);
enum class EntryType : std::uint8_t { kFile = 1, kDirectory = 2, kCharacterDevice = 3, kBlockDevice = 4, kFifo = 5, kSocket = 6, kSymlink = 7 };

// Behind inode and attributes, at the next multiple of 8.
struct ChunkIndex {
  std::uint16_t reserved;
  std::uint16_t device;   // 0: `block` is an address of the one space
  std::uint32_t block;    // kNoBlock is a hole
};
static_assert(sizeof(ChunkIndex) == 8);
// Inode::address of Layout::kChunked: log2 of the blocks in a chunk, and this bit.
inline constexpr std::uint32_t kChunkIndexes = 0x20;
inline constexpr std::uint32_t kChunkBitsMask = 0x1F;

// Also at a multiple of 8.
struct CompressedHeader {
  std::uint32_t reserved;
  std::uint16_t advice;
  std::uint8_t algorithms;    // 0: LZ4
  std::uint8_t cluster_bits;  // log2 of a logical cluster's bytes, less 12
};
static_assert(sizeof(CompressedHeader) == 8);
inline constexpr std::uint16_t kBigPieces = 0x2;
inline constexpr std::uint32_t kCompressedIndexGap = 8;

enum class ClusterType : std::uint16_t {
  kPlain = 0,  // one block, not compressed
  kHead = 1,   // a compressed piece starts here
  kInside = 2,
};

struct ClusterIndex {
  std::uint16_t advice;  // ClusterType
  std::uint16_t offset;  // always 0: pieces start with a cluster
  // A block for kPlain and kHead. For kInside the distance back to the head in
  // the low half (for the first one kPieceBlocks | blocks of the piece), and the
  // distance on to the next head in the high half.
  std::uint32_t place;
};
static_assert(sizeof(ClusterIndex) == 8);
inline constexpr std::uint16_t kPieceBlocks = 0x800;

}  // namespace dsec::erofs
