// Parts that an import in progress needs: the store keeps them meanwhile.
#pragma once

#include <set>
#include <string>

namespace dsec::image {

class LayerStore;

class PartHolds {
 public:
  explicit PartHolds(LayerStore& store) : store_(store) {}
  // What no image names by then goes.
  ~PartHolds();
  PartHolds(const PartHolds&) = delete;
  PartHolds& operator=(const PartHolds&) = delete;

 private:
  friend class LayerStore;
  LayerStore& store_;
  std::set<std::string> digests_;
};

}  // namespace dsec::image
