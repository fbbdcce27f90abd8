// Which objects this node serves, by name and by the number that the kernel knows.
//
// In the folder `state`, <hex>.index says that an object is served and what its
// chunks are; whoever puts one there vouches for it. <hex>.chunks is what is
// cached of it. An object that is whole on this node lies in the folder of the
// layers, as <hex>.data.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "origin/origin.h"
#include "stored/blob.h"
#include "stored/cache_budget.h"

namespace dsec::stored {

struct StoredFolders {
  std::string state;
  std::string layers;  // "" = whole objects are not handed over
};

// Safe on any thread.
class BlobTable {
 public:
  // Outlived by the origin and the budget. The order of first reads is kept for `trace_window`.
  BlobTable(StoredFolders folders, origin::Origin& origin, CacheBudget& budget, origin::ReadPatience patience, Duration trace_window = {});

  // Opens what earlier processes have cached, so that it counts; removes what nothing is served of any more.
  Result<void> load();
  // kNotFound for an object that has no index here.
  Result<std::shared_ptr<Blob>> find(const std::string& hex);
  // By the number that the kernel has been told, by this process or an earlier one.
  Result<std::shared_ptr<Blob>> find_node(std::uint64_t node);
  // Half of the digest: the same in every process that serves the object.
  static std::uint64_t node_of(const std::string& hex);

  // All chunks of it are here: it becomes a file of the layers.
  void hand_over(const std::shared_ptr<Blob>& blob);
  // Lets go of objects whose index was taken away.
  void drop_removed();
  std::map<std::string, BlobCounts> counts() const;

 private:
  std::string index_path(const std::string& hex) const { return folders_.state + "/" + hex + ".index"; }
  std::string chunks_path(const std::string& hex) const { return folders_.state + "/" + hex + ".chunks"; }
  std::string whole_path(const std::string& hex) const { return folders_.layers + "/" + hex + ".data"; }
  Result<std::shared_ptr<Blob>> open(const std::string& hex) const;

  const StoredFolders folders_;
  origin::Origin& origin_;
  CacheBudget& budget_;
  const origin::ReadPatience patience_;
  const Duration trace_window_;
  mutable std::mutex mutex_;  // guards blobs_; held over the opening of local files, never over the origin
  std::map<std::uint64_t, std::shared_ptr<Blob>> blobs_;
};

}  // namespace dsec::stored
