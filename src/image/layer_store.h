// The node's layers: immutable EROFS images by digest, each mounted once.
//
// Files below `directory`: <hex digest>.erofs and <hex digest>.json (the
// record). A layer exists when its record does; both are published by
// temporary name, fsync, rename, fsync of the directory.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/layer.h"
#include "sys/descriptor_keeper.h"
#include "sys/fd.h"

namespace dsec::image {

class LayerStore {
 public:
  // Reads the records below `directory` (made if missing) and takes back the
  // mounts that the keeper still holds. `keeper` outlives the store.
  static Result<std::unique_ptr<LayerStore>> open(std::string directory, sys::DescriptorKeeper& keeper);

  // A detached read-only, nosuid, nodev mount of the image: one superblock for
  // each digest on the whole node. The descriptor is owned by the store and
  // stays valid until remove(). May block for a mount (tens of microseconds).
  Result<int> mount(const std::string& digest);
  Result<model::LayerRecord> find(const std::string& digest) const;
  std::vector<model::LayerRecord> list() const;
  // Publishes an image file made by an importer (moved, not copied).
  Result<void> publish(const std::string& image_file, const model::LayerRecord& record);
  // kConflict while a sandbox uses it (the caller says so by `in_use`).
  Result<void> remove(const std::string& digest);
  const std::string& directory() const { return directory_; }

 private:
  LayerStore(std::string directory, sys::DescriptorKeeper& keeper);

  const std::string directory_;
  sys::DescriptorKeeper& keeper_;
  mutable std::mutex mutex_;  // guards records_ and mounts_; held across a mount, never across file content
  std::map<std::string, model::LayerRecord> records_;
  std::map<std::string, sys::Fd> mounts_;
};

}  // namespace dsec::image
