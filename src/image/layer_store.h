// The node's layers: immutable EROFS images by digest, each mounted once.
//
// A layer is metadata, the data files that this names, and a record
// (layer_files.h). It exists when its record does. They are published in the order
// data, metadata, record, each synced and renamed to its name before the next,
// and removed in the opposite order; so data that no metadata names and metadata
// without a record are what a crash left, and open() removes them.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "erofs/device_table.h"
#include "image/layer_files.h"
#include "image/layer_mounts.h"
#include "image/part_holds.h"
#include "model/layer.h"
#include "sys/descriptor_keeper.h"
#include "sys/fd.h"

namespace dsec::image {

// An image as an importer makes it. The file `data` may be empty: then there is
// none. Without a file, what the metadata names has to be here or on demand.
struct ImageFiles {
  std::string metadata;
  std::string data;
};

class LayerStore {
 public:
  // Reads the records below `directory` (made if missing) and takes back the
  // mounts that the keeper still holds. `keeper` and `on_demand`, if there is one,
  // outlive the store.
  static Result<std::unique_ptr<LayerStore>> open(std::string directory, sys::DescriptorKeeper& keeper, DataOnDemand* on_demand = nullptr);

  // A detached read-only, nosuid, nodev mount of the image: one superblock for
  // each digest on the whole node. The descriptor is owned by the store and
  // stays valid until remove(). May block for a mount (tens of microseconds).
  Result<int> mount(const std::string& digest);
  Result<model::LayerRecord> find(const std::string& digest) const;
  // Without parts.
  std::vector<model::LayerRecord> list() const;
  // Publishes an image made by an importer (moved, not copied: it lies on the
  // store's filesystem, and no one else may still write to it). The bytes are
  // hashed: the metadata's digest is compared with record.digest, which is filled
  // in when empty, as is size_bytes; the data's with what the metadata says, which
  // erofs::check_image() has to find sound: it is what the kernel will mount.
  // The files with set-id bits and capabilities are listed as the image has them.
  // A part (record.diff_id) stays while an image names it or an import holds it: `holds`
  // takes it.
  // Answers the record as stored: a digest that the store has keeps its own, and
  // the files are removed all the same. Blocks for as long as reading and syncing
  // them takes.
  Result<model::LayerRecord> publish(const ImageFiles& files, model::LayerRecord record, PartHolds* holds = nullptr);
  // An image's layer that was converted before, if it is one of `among`; held from now on.
  std::optional<model::LayerRecord> find_part(const std::string& diff_id, const std::string& profile, const std::set<std::string>& among, PartHolds& holds);
  // Any layer; kNotFound when it is not there. Neither a removal nor the collector takes it meanwhile.
  Result<void> hold_layer(const std::string& digest, PartHolds& holds);
  // The newest part of a build under this name, held from now on; this is a use of it.
  std::optional<model::LayerRecord> find_build_part(const std::string& name, PartHolds& holds);
  // Removes parts of builds that no image names and nobody holds: those without a use
  // for `longest`, then the ones used least lately, until no more than `most_bytes` are left.
  struct Swept {
    std::uint64_t removed = 0;
    std::uint64_t kept = 0;
    std::uint64_t kept_bytes = 0;
  };
  Result<Swept> sweep_build_parts(std::uint64_t most_bytes, std::chrono::seconds longest);
  // PartHolds' end. Parts of builds stay: they are the cache.
  void release(const PartHolds& holds);
  // Data of a layer that is published next and that names more than its own. Until
  // then it belongs to nobody, and goes with the first removal or restart. Moved.
  Result<void> adopt_data(const std::string& path, const erofs::Device& device);
  bool has_data(const erofs::Device& device) const;
  // kConflict while a sandbox uses it: `in_use` is asked under the lock that
  // mount() takes, so a caller that notes its use before mount() never loses a
  // layer to a removal. Sandboxes that run keep the content until they end.
  Result<void> remove(const std::string& digest, const std::function<bool(const std::string&)>& in_use = {});
  // The same for a layer that nobody has published within `idle`, again or at all: kConflict.
  Result<void> remove_idle(const std::string& digest, std::chrono::milliseconds idle);
  bool published_within(const std::string& digest, std::chrono::milliseconds idle) const;
  // Whether a build that goes on needs it: held by hold_layer().
  bool in_use_by_build(const std::string& digest) const;
  // As if it had just been published: somebody is about to name it. False when it is not there.
  bool touch(const std::string& digest);
  // What its removal would give back, its parts' included: data that other layers name stays. 0 for an unknown one.
  std::uint64_t sole_bytes(const std::string& digest) const;
  // Hashes the stored files again: kDataFault when one is not what its name says.
  Result<void> verify(const std::string& digest) const;
  // The files themselves, for who reads a layer without a mount.
  struct OpenFiles {
    sys::Fd metadata;
    std::vector<sys::Fd> data;  // in the order of the device table
  };
  Result<OpenFiles> open_files(const std::string& digest) const;
  // The data objects that hold its content, and whether this node has each as a file or reads it on demand.
  struct Data {
    erofs::Device device;
    bool whole = false;
  };
  Result<std::vector<Data>> data(const std::string& digest) const;
  // By hex: every layer, and every data object that one of them names.
  std::set<std::string> objects() const;
  // Digests of the layers whose content lies in this data object.
  std::vector<std::string> layers_with_data(const std::string& hex) const;
  // What this host lacks and what open() mended, for doctor.
  std::vector<std::string> notes() const;
  const std::string& directory() const { return files_.directory(); }

 private:
  friend class PartHolds;
  LayerStore(std::string directory, sys::DescriptorKeeper& keeper, DataOnDemand* on_demand);
  Result<void> load();
  Result<std::vector<erofs::Device>> devices_of_layer(const std::string& digest) const;
  Result<sys::Fd> mount_now(const std::string& digest, const std::vector<erofs::Device>& devices);
  Result<void> remove_unused(const LayerFiles::Listing& listing);
  // Under the lock: gives checked files their names, data first.
  Result<void> name_files(const ImageFiles& files, const std::string& digest, const std::vector<erofs::Device>& devices, bool own_data);
  Result<void> remove_data(const std::vector<erofs::Device>& devices);
  // By a layer that is none of `but`.
  bool data_in_use(const std::string& hex, const std::set<std::string>& but = {}) const;
  bool is_fresh(const std::string& digest, std::chrono::milliseconds idle) const;
  // All under the lock. Parts that neither an image names nor anyone holds:
  bool part_in_use(const std::string& digest, const std::string& but = {}) const;
  Result<void> remove_unused_parts(const std::vector<std::string>& digests);
  void hold(const std::string& digest, PartHolds& holds);
  Result<void> remove_known(const std::string& digest);
  void note(const std::string& text);

  struct Layer {
    model::LayerRecord record;
    std::vector<erofs::Device> devices;
    Instant published = Instant::min();  // by this process; again, too
    std::int64_t used_at_ms = 0;         // Unix time; of a part of a build
  };

  const LayerFiles files_;
  LayerMounts mounts_;
  mutable std::mutex mutex_;  // guards all below; never held across a mount or file content
  std::map<std::string, Layer> layers_;
  std::map<std::string, unsigned> held_parts_;  // by digest: how often
  std::vector<std::string> notes_;
  const std::shared_ptr<void> lives_ = std::make_shared<int>();  // what PartHolds look at
};

}  // namespace dsec::image
