// Parts: the layers of images, each converted by itself. They exist for the images
// that name them and for nobody else.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/log.h"
#include "image/layer_store.h"

namespace dsec::image {

namespace {

bool is_build_part(const std::string& diff_id) { return diff_id.starts_with("build:"); }

std::int64_t now_ms() { return std::chrono::duration_cast<std::chrono::milliseconds>(SystemClock().wall_now().time_since_epoch()).count(); }

}  // namespace

PartHolds::PartHolds(LayerStore& store) : store_(store), store_lives_(store.lives_) {}

PartHolds::~PartHolds() {
  if (!store_lives_.expired()) store_.release(*this);
}

std::optional<model::LayerRecord> LayerStore::find_part(const std::string& diff_id, const std::string& profile, const std::set<std::string>& among, PartHolds& holds) {
  const std::lock_guard lock(mutex_);
  for (const std::string& digest : among) {
    const auto found = layers_.find(digest);
    if (found == layers_.end() || found->second.record.kind == model::LayerKind::kVerifier || found->second.record.diff_id != diff_id || found->second.record.profile != profile) continue;
    hold(digest, holds);
    return found->second.record;
  }
  return std::nullopt;
}

Result<void> LayerStore::hold_layer(const std::string& digest, PartHolds& holds) {
  const std::lock_guard lock(mutex_);
  if (!layers_.contains(digest)) return Error(ErrorCode::kNotFound, "no layer " + digest);
  hold(digest, holds);
  return {};
}

std::optional<model::LayerRecord> LayerStore::find_build_part(const std::string& name, PartHolds& holds) {
  const std::lock_guard lock(mutex_);
  Layer* newest = nullptr;
  for (auto& [digest, layer] : layers_) {
    if (layer.record.diff_id == name && (newest == nullptr || layer.record.created_at_ms > newest->record.created_at_ms)) newest = &layer;
  }
  if (newest == nullptr) return std::nullopt;
  hold(newest->record.digest, holds);
  // Kept on disk for the next start; in memory it counts all the same.
  (void)::utimensat(AT_FDCWD, files_.record(newest->record.digest).c_str(), nullptr, 0);
  newest->used_at_ms = now_ms();
  return newest->record;
}

Result<LayerStore::Swept> LayerStore::sweep_build_parts(std::uint64_t most_bytes, std::chrono::seconds longest) {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::int64_t, std::string>> newest_first;
  std::set<std::string> cached;
  for (const auto& [digest, layer] : layers_) {
    if (!is_build_part(layer.record.diff_id) || part_in_use(digest)) continue;
    newest_first.emplace_back(layer.used_at_ms, digest);
    cached.insert(digest);
  }
  std::sort(newest_first.rbegin(), newest_first.rend());
  Swept out;
  std::set<std::string> counted;
  const std::int64_t oldest = now_ms() - std::chrono::milliseconds(longest).count();
  for (const auto& [used, digest] : newest_first) {
    const Layer& layer = layers_.at(digest);
    std::uint64_t bytes = layer.record.size_bytes;
    for (const erofs::Device& device : layer.devices) {
      const bool shared = data_in_use(device.digest, cached) || !counted.insert(device.digest).second;
      if (shared) bytes -= std::min(bytes, device.bytes());
    }
    if (used < oldest || out.kept_bytes + bytes > most_bytes) {
      DSEC_TRY(remove_known(digest));
      out.removed++;
      continue;
    }
    out.kept++;
    out.kept_bytes += bytes;
  }
  return out;
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
    const auto found = layers_.find(digest);
    if (found == layers_.end() || found->second.record.diff_id.empty() || is_build_part(found->second.record.diff_id)) continue;
    if (!part_in_use(digest)) DSEC_TRY(remove_known(digest));
  }
  return {};
}

}  // namespace dsec::image
