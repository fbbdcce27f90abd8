// The node's layers: immutable EROFS images by digest, each mounted once.
//
// Files below `directory`: <hex digest>.erofs and <hex digest>.json (the
// record). A layer exists when its record does; both are published by
// temporary name, fsync, rename, fsync of the directory, the image first. An
// image without a record is what a crash left, and open() removes it.
#pragma once

#include <functional>
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
  // Publishes an image file made by an importer (moved, not copied: it lies on
  // the store's filesystem, and no one else may still write to it). The bytes
  // are hashed and compared with record.digest, which is filled in when empty,
  // as is size_bytes. Answers the record as stored: a digest that the store has
  // keeps its own, and the file is removed all the same. Blocks for as long as
  // reading and syncing the file takes.
  Result<model::LayerRecord> publish(const std::string& image_file, model::LayerRecord record);
  // kConflict while a sandbox uses it: `in_use` is asked under the lock that
  // mount() takes, so a caller that notes its use before mount() never loses a
  // layer to a removal. Sandboxes that run keep the content until they end.
  Result<void> remove(const std::string& digest, const std::function<bool(const std::string&)>& in_use = {});
  // Hashes the stored file again: kDataFault when it is not what its name says.
  Result<void> verify(const std::string& digest) const;
  // What this host lacks and what open() mended, for doctor.
  std::vector<std::string> notes() const;
  const std::string& directory() const { return directory_; }

 private:
  LayerStore(std::string directory, sys::DescriptorKeeper& keeper);
  Result<void> load();
  Result<void> take_back_mounts();
  std::string image_path(const std::string& digest) const;
  std::string record_path(const std::string& digest) const;
  void note(const std::string& text);

  const std::string directory_;
  sys::DescriptorKeeper& keeper_;
  mutable std::mutex mutex_;  // guards all below; held across a mount, never across file content
  std::map<std::string, model::LayerRecord> records_;
  std::map<std::string, sys::Fd> mounts_;
  std::vector<std::string> notes_;
};

}  // namespace dsec::image
