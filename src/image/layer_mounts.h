// The mounts of layers: one superblock for each digest on the whole node.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "base/result.h"
#include "sys/descriptor_keeper.h"
#include "sys/fd.h"

namespace dsec::image {

// Safe on any thread. The keeper holds each mount as well, so that they outlive this process.
class LayerMounts {
 public:
  // `keeper` outlives this.
  explicit LayerMounts(sys::DescriptorKeeper& keeper) : keeper_(keeper) {}

  // Those of an earlier process, as far as `known` wants their digest.
  Result<void> take_back(const std::function<bool(const std::string&)>& known);
  // The descriptor stays valid until drop().
  std::optional<int> find(const std::string& digest) const;
  // The one that is there, or what `make` answers, which is asked once however many
  // wait for it, and without a lock: one slow layer delays no other.
  Result<int> get(const std::string& digest, const std::function<Result<sys::Fd>()>& make);
  Result<void> drop(const std::string& digest);

 private:
  sys::DescriptorKeeper& keeper_;
  mutable std::mutex mutex_;  // guards what follows; never held over a mount
  std::condition_variable made_;
  std::map<std::string, sys::Fd> mounts_;
  std::set<std::string> in_the_making_;
};

}  // namespace dsec::image
