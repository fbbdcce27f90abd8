#include "erofs/device_table.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "erofs/format.h"

namespace dsec::erofs {

namespace {

template <typename T>
Result<T> read_at(int fd, std::uint64_t offset) {
  T out{};
  const ssize_t n = ::pread(fd, &out, sizeof out, static_cast<off_t>(offset));
  if (n < 0) return errno_error("read an image's front", errno);
  if (static_cast<std::size_t>(n) != sizeof out) return Error(ErrorCode::kDataFault, "the image ends early");
  return out;
}

}  // namespace

Result<std::vector<Device>> read_device_table(int fd) {
  DSEC_ASSIGN(const Superblock super, read_at<Superblock>(fd, kSuperblockOffset));
  if (super.magic != kMagic) return Error(ErrorCode::kDataFault, "the image is not EROFS");
  std::vector<Device> devices;
  if ((super.incompatible_features & kDeviceTable) == 0) return devices;
  if (super.block_bits != kBlockBits || super.extra_devices > kMaximalDevices) return Error(ErrorCode::kDataFault, "the image is of a kind that we do not make");
  for (std::uint64_t i = 0; i < super.extra_devices; i++) {
    DSEC_ASSIGN(const DeviceSlot slot, read_at<DeviceSlot>(fd, (super.device_table_slot + i) * sizeof(DeviceSlot)));
    Device device{std::string(slot.tag, sizeof slot.tag), slot.blocks};
    const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
    if (!std::all_of(device.digest.begin(), device.digest.end(), hex)) return Error(ErrorCode::kDataFault, "the image names a data file by no digest");
    devices.push_back(std::move(device));
  }
  return devices;
}

}  // namespace dsec::erofs
