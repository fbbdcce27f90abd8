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
#include "origin/manifest.h"
#include "origin/origin.h"

namespace dsec::image {

// Any thread; calls block for as long as the bytes take. All but the options is
// outlived by what it is given.
class LayerExchange {
 public:
  struct Options {
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
  const origin::Origin& origin() const { return origin_; }

 private:
  LayerExchange(Options options, origin::Origin& origin, LayerStore& layers);
  Result<origin::Manifest> put_parts(const std::string& digest, origin::Origin& to);
  Result<void> put_manifest(const origin::Manifest& manifest, const std::string& hex, origin::Origin& to);
  Result<model::LayerRecord> take_new(const std::string& digest);
  Result<void> take_parts(const origin::Manifest& manifest, const std::string& hex, const ImageFiles& files);
  enum class Provided { kWhole, kOnDemand };
  Result<Provided> provide_data(const origin::ManifestData& data, const std::string& path);
  std::string scratch(const std::string& name) const { return options_.work_directory + "/" + name; }

  const Options options_;
  origin::Origin& origin_;
  LayerStore& layers_;
  std::mutex mutex_;  // guards taking_; never held over a call
  std::condition_variable taken_;
  std::set<std::string> taking_;  // digests, each by one thread
};

}  // namespace dsec::image
