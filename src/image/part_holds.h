// Parts that an import in progress needs: the store keeps them meanwhile.
#pragma once

#include <memory>
#include <set>
#include <string>

namespace dsec::image {

class LayerStore;

class PartHolds {
 public:
  explicit PartHolds(LayerStore& store);
  // What no image names by then goes. Nothing happens after the store's own end, which
  // work that is given up with the process may outlast.
  ~PartHolds();
  PartHolds(const PartHolds&) = delete;
  PartHolds& operator=(const PartHolds&) = delete;

 private:
  friend class LayerStore;
  LayerStore& store_;
  const std::weak_ptr<void> store_lives_;
  std::set<std::string> digests_;
};

}  // namespace dsec::image
