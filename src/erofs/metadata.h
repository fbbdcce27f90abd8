// The metadata file, once everything has its place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "erofs/content_store.h"
#include "erofs/device_table.h"
#include "erofs/layout.h"
#include "erofs/tree.h"

namespace dsec::erofs {

// The devices that the used contents lie on, this image's own data file first;
// `slot_of[i]` is the place of content device i among them.
struct DeviceList {
  std::vector<Device> devices;
  std::vector<std::uint32_t> slot_of;
};
DeviceList list_devices(const ContentStore& contents, const std::vector<bool>& used);

// Of superblock, compression settings and device table: where inodes may start.
std::uint32_t front_bytes(std::size_t devices);

struct MetadataPlan {
  const Tree& tree;
  const ContentStore& contents;
  const ImageLayout& layout;
  const DeviceList& devices;
  std::string identity;  // goes into the UUID, with all else
};
// Into an empty file. Its size.
Result<std::uint64_t> write_metadata(const MetadataPlan& plan, int fd);

}  // namespace dsec::erofs
