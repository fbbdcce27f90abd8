// Layers on their way between this node and the shared store (docs/adr/0015).
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "image/layer_store.h"
#include "origin/collection.h"
#include "origin/lease.h"
#include "origin/manifest.h"
#include "origin/origin.h"

namespace dsec::image {

// Any thread; calls block for as long as the bytes take. All but the options is
// outlived by what it is given.
class LayerExchange {
 public:
  struct Options {
    std::string node;                       // this node's name in the store, nobody else's
    std::string lease_file;                 // where it remembers its leases (origin/lease.h)
    std::string work_directory;             // made if missing; on the layers' file system
    std::string signing_key;                // PEM: what is put is signed by it
    std::vector<std::string> trusted_keys;  // PEM: whose manifests are taken
    std::map<std::string, origin::Origin*> others;  // by name: further stores to put layers into
    DataOnDemand* on_demand = nullptr;      // what is taken is read through it; nullptr: copied whole
  };
  static Result<std::unique_ptr<LayerExchange>> create(Options options, origin::Origin& origin, LayerStore& layers);

  // Into this node's store, or into another by its name (kNotFound for an unknown
  // one). Idempotent. kConflict when there is a manifest of the layer that says
  // something else, or that nobody trusted signed.
  Result<void> put(const std::string& digest, const std::string& other = {});
  // A layer that this node lacks; one that it has is answered at once. The
  // manifest's signature, every digest and the form of the metadata are checked
  // before the layer exists here. kNotFound when the store has no such layer.
  Result<model::LayerRecord> take(const std::string& digest);
  // What the store knows of who read the layer's data first (origin/access_trace.h), by
  // the data object's hex digest; those that it knows nothing of are left out.
  Result<std::map<std::string, std::string>> traces(const std::string& digest) const;
  // The store keeps what this node has, and these, for a day from now. True: for a
  // time it did not promise that. To be called every few hours.
  Result<bool> renew_lease(const std::set<std::string>& digests);
  // What no node's lease names: condemned, and removed when it was so for `delete_after`.
  // One at a time.
  Result<origin::Collection> collect(origin::CollectionOptions options);
  // Whether this node was killed while it collected: then it has to do so again.
  Result<bool> collection_was_cut_off();
  const origin::Origin& origin() const { return origin_; }

 private:
  LayerExchange(Options options, origin::Origin& origin, LayerStore& layers);
  struct Parts {
    origin::Manifest manifest;
    origin::Content metadata;
    std::vector<origin::Content> data, indexes;  // as in the manifest
    std::vector<std::string> hexes() const;
  };
  Result<Parts> parts_of(const std::string& digest) const;
  Result<void> put_manifest(const origin::Manifest& manifest, const std::string& hex, origin::Origin& to);
  Result<model::LayerRecord> take_new(const std::string& digest);
  Result<void> take_parts(const origin::Manifest& manifest, const std::string& hex, const ImageFiles& files);
  enum class Provided { kWhole, kOnDemand };
  Result<Provided> provide_data(const origin::ManifestData& data, const std::string& path);
  std::string scratch(const std::string& name) const { return options_.work_directory + "/" + name; }

  const Options options_;
  origin::Origin& origin_;
  LayerStore& layers_;
  const SystemClock clock_;
  origin::LeaseHolder lease_;
  std::mutex mutex_;  // guards taking_; never held over a call
  std::condition_variable taken_;
  std::set<std::string> taking_;  // digests, each by one thread
};

}  // namespace dsec::image
