// Parts: the layers of images, each converted by itself. They exist for the images
// that name them and for nobody else.
#include <algorithm>

#include "base/log.h"
#include "image/layer_store.h"

namespace dsec::image {

PartHolds::~PartHolds() { store_.release(*this); }

std::optional<model::LayerRecord> LayerStore::find_part(const std::string& diff_id, const std::string& profile, const std::set<std::string>& among, PartHolds& holds) {
  const std::lock_guard lock(mutex_);
  for (const std::string& digest : among) {
    const auto found = layers_.find(digest);
    if (found == layers_.end() || found->second.record.diff_id != diff_id || found->second.record.profile != profile) continue;
    hold(digest, holds);
    return found->second.record;
  }
  return std::nullopt;
}

void LayerStore::hold(const std::string& digest, PartHolds& holds) {
  if (holds.digests_.insert(digest).second) held_parts_[digest]++;
}

void LayerStore::release(const PartHolds& holds) {
  const std::lock_guard lock(mutex_);
  for (const std::string& digest : holds.digests_) {
    const auto held = held_parts_.find(digest);
    if (--held->second == 0) held_parts_.erase(held);
  }
  const Result<void> removed = remove_unused_parts({holds.digests_.begin(), holds.digests_.end()});
  if (!removed.ok()) log_warning("a part of no image stays until the next start", {{"error", removed.error().message()}});
}

bool LayerStore::part_in_use(const std::string& digest, const std::string& but) const {
  if (held_parts_.contains(digest)) return true;
  return std::any_of(layers_.begin(), layers_.end(), [&](const auto& entry) {
    if (entry.first == but) return false;
    const std::vector<std::string>& parts = entry.second.record.parts;
    return std::find(parts.begin(), parts.end(), digest) != parts.end();
  });
}

std::uint64_t LayerStore::sole_bytes(const std::string& digest) const {
  const std::lock_guard lock(mutex_);
  const auto found = layers_.find(digest);
  if (found == layers_.end()) return 0;
  std::set<std::string> going = {digest};
  for (const std::string& part : found->second.record.parts) {
    if (layers_.contains(part) && !part_in_use(part, digest)) going.insert(part);
  }
  std::uint64_t bytes = 0;
  std::set<std::string> counted;
  for (const std::string& one : going) {
    const Layer& layer = layers_.at(one);
    bytes += layer.record.size_bytes;
    for (const erofs::Device& device : layer.devices) {
      const bool stays = data_in_use(device.digest, going) || !counted.insert(device.digest).second;
      if (stays) bytes -= std::min(bytes, device.bytes());
    }
  }
  return bytes;
}

Result<void> LayerStore::remove_unused_parts(const std::vector<std::string>& digests) {
  for (const std::string& digest : digests) {
    if (layers_.contains(digest) && !part_in_use(digest)) DSEC_TRY(remove_known(digest));
  }
  return {};
}

}  // namespace dsec::image
