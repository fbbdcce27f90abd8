// The metadata file's bytes, once everything has its place.
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
  std::int64_t unstated_seconds = 0;  // the time of directories that nobody described
  std::string identity;               // goes into the UUID, with all else
};
Result<std::string> make_metadata(const MetadataPlan& plan);

}  // namespace dsec::erofs
