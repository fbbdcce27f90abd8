#include "erofs/check_superblock.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/crc32c.h"

namespace dsec::erofs {
namespace {

Problem at_superblock(std::size_t field, std::string what) { return {.offset = kSuperblockOffset + field, .path = "", .what = std::move(what)}; }

template <typename T>
bool all_zero(const T& bytes) {
  return std::all_of(std::begin(bytes), std::end(bytes), [](auto byte) { return byte == 0; });
}

// As the kernel counts it: with the field itself as zero, not inverted at the end.
std::uint32_t checksum_of(std::string_view first_block) {
  std::string bytes(first_block.substr(kSuperblockOffset));
  std::memset(bytes.data() + offsetof(Superblock, checksum), 0, sizeof(std::uint32_t));
  return ~crc32c(bytes);
}

std::optional<Problem> check_features(const Superblock& superblock) {
  const auto wrong = at_superblock;
  if ((superblock.compatible_features & ~kModificationTimes) != kChecksum)
    return wrong(offsetof(Superblock, compatible_features), "the compatible features are not ours");
  const bool packed = (superblock.incompatible_features & kLz4Padding) != 0;
  if (packed != ((superblock.incompatible_features & kCompressionSettings) != 0))
    return wrong(offsetof(Superblock, incompatible_features), "the compression features do not go together");
  if (superblock.compression != (packed ? 1 : 0)) return wrong(offsetof(Superblock, compression), "the compression is not ours");
  if (((superblock.incompatible_features & kDeviceTable) != 0) != (superblock.extra_devices != 0))
    return wrong(offsetof(Superblock, extra_devices), "the number of devices and the features differ");
  if (superblock.extra_devices == 0 && superblock.device_table_slot != 0)
    return wrong(offsetof(Superblock, device_table_slot), "a device table without devices");
  return {};
}

std::optional<Problem> check_unused(const Superblock& superblock) {
  const auto wrong = at_superblock;
  if (superblock.metadata_block != 0) return wrong(offsetof(Superblock, metadata_block), "the inodes do not start at block 0");
  if (superblock.shared_attributes_block != 0) return wrong(offsetof(Superblock, shared_attributes_block), "there is an area of shared attributes");
  if (superblock.epoch_nanoseconds >= 1'000'000'000) return wrong(offsetof(Superblock, epoch_nanoseconds), "a time is out of range");
  if (!all_zero(superblock.volume_name)) return wrong(offsetof(Superblock, volume_name), "the volume has a name");
  if (superblock.attribute_prefixes != 0 || superblock.attribute_prefix_start != 0)
    return wrong(offsetof(Superblock, attribute_prefixes), "there are attribute prefixes");
  if (superblock.packed_nid != 0) return wrong(offsetof(Superblock, packed_nid), "there is a packed inode");
  if (superblock.attribute_filter != 0 || !all_zero(superblock.reserved)) return wrong(offsetof(Superblock, attribute_filter), "reserved bytes are not zero");
  return {};
}

bool is_tag(const DeviceSlot& slot) {
  return std::all_of(std::begin(slot.tag), std::end(slot.tag), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::optional<Problem> check_device(const Superblock& superblock, const std::vector<DeviceSlot>& slots, std::size_t index) {
  const DeviceSlot& slot = slots[index];
  const auto wrong = [&](std::string what) {
    return Problem{.offset = (superblock.device_table_slot + index) * sizeof(DeviceSlot), .path = "", .what = "data file " + std::to_string(index + 1) + ": " + std::move(what)};
  };
  if (!is_tag(slot)) return wrong("its tag is no digest");
  if (!all_zero(slot.reserved)) return wrong("reserved bytes are not zero");
  const std::uint64_t begin = slot.unified_address;
  const std::uint64_t end = begin + slot.blocks;
  if (begin < superblock.blocks || end > kNoBlock) return wrong("it lies where the metadata does, or beyond all addresses");
  for (std::size_t i = 0; i < index; ++i) {
    const std::uint64_t other = slots[i].unified_address;
    if (begin < other + slots[i].blocks && other < end) return wrong("it overlaps another one");
  }
  return {};
}

}  // namespace

std::optional<Problem> check_superblock(const Reader& reader, std::string_view first_block, const std::vector<std::uint64_t>& device_bytes, Occupancy& occupancy) {
  const Superblock& superblock = reader.superblock();
  const std::vector<DeviceSlot>& slots = reader.devices();
  if (reader.metadata_bytes() != std::uint64_t{superblock.blocks} * kBlockBytes)
    return at_superblock(offsetof(Superblock, blocks), "the number of blocks and the size of the file differ");
  if (auto problem = check_features(superblock)) return problem;
  if (superblock.checksum != checksum_of(first_block)) return at_superblock(offsetof(Superblock, checksum), "the checksum is wrong");
  if (auto problem = check_unused(superblock)) return problem;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (auto problem = check_device(superblock, slots, i)) return problem;
    if (!device_bytes.empty() && (device_bytes.size() != slots.size() || device_bytes[i] != std::uint64_t{slots[i].blocks} * kBlockBytes))
      return Problem{.offset = (superblock.device_table_slot + i) * sizeof(DeviceSlot), .path = "", .what = "a data file has another size than the table says"};
  }

  std::uint64_t end = kSuperblockOffset + sizeof(Superblock);
  if (superblock.compression != 0) {
    Lz4Settings settings{};
    std::memcpy(&settings, first_block.data() + end, sizeof settings);
    if (settings.bytes != sizeof settings - sizeof settings.bytes || settings.maximal_distance != kLz4Distance || settings.maximal_piece_blocks == 0 ||
        settings.maximal_piece_blocks > kMaximalPieceBlocks || !all_zero(settings.reserved))
      return at_superblock(sizeof(Superblock), "the compression settings are not ours");
    end += sizeof settings;
  }
  const std::uint64_t table = superblock.device_table_slot * sizeof(DeviceSlot);
  const bool fits = occupancy.add(Occupancy::Kind::kStructure, kSuperblockOffset, end, 0) &&
                    occupancy.add(Occupancy::Kind::kStructure, table, table + slots.size() * sizeof(DeviceSlot), 0);
  if (!fits) return at_superblock(offsetof(Superblock, blocks), "the metadata is too short");
  return {};
}

}  // namespace dsec::erofs
