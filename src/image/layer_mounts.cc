#include "image/layer_mounts.h"

#include <string_view>

#include "image/erofs_mount.h"

namespace dsec::image {

namespace {
constexpr std::string_view kKept = "layer/";
}

Result<void> LayerMounts::take_back(const std::function<bool(const std::string&)>& known) {
  DSEC_ASSIGN(std::vector<sys::KeptDescriptor> kept, keeper_.get(std::string(kKept)));
  const std::lock_guard lock(mutex_);
  for (sys::KeptDescriptor& descriptor : kept) {
    if (!descriptor.name.starts_with(kKept)) continue;
    const std::string digest = descriptor.name.substr(kKept.size());
    if (known(digest) && is_erofs(descriptor.fd.get())) {
      mounts_[digest] = std::move(descriptor.fd);
    } else {
      DSEC_TRY(keeper_.drop(descriptor.name));
    }
  }
  return {};
}

std::optional<int> LayerMounts::find(const std::string& digest) const {
  const std::lock_guard lock(mutex_);
  const auto held = mounts_.find(digest);
  return held == mounts_.end() ? std::nullopt : std::optional(held->second.get());
}

Result<int> LayerMounts::get(const std::string& digest, const std::function<Result<sys::Fd>()>& make) {
  std::unique_lock lock(mutex_);
  made_.wait(lock, [&] { return !in_the_making_.contains(digest); });
  if (const auto held = mounts_.find(digest); held != mounts_.end()) return held->second.get();
  in_the_making_.insert(digest);
  lock.unlock();
  Result<sys::Fd> mount = make();
  // Kept before anyone sees it: a mount that only this process knows would be
  // made a second time after a restart, beside the one that sandboxes hold.
  Result<void> kept = mount.ok() ? keeper_.put(std::string(kKept) + digest, mount->get()).within("keep the mount of " + digest) : Result<void>(mount.error());
  lock.lock();
  in_the_making_.erase(digest);
  made_.notify_all();
  if (!kept.ok()) return std::move(kept).error();
  return mounts_.emplace(digest, std::move(mount).value()).first->second.get();
}

Result<void> LayerMounts::drop(const std::string& digest) {
  const std::lock_guard lock(mutex_);
  if (mounts_.erase(digest) == 0) return {};
  return keeper_.drop(std::string(kKept) + digest);
}

}  // namespace dsec::image
