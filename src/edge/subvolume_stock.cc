#include "edge/subvolume_stock.h"

#include <fcntl.h>
#include <linux/btrfs.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <vector>

#include "base/log.h"
#include "sys/file.h"

namespace dsec::edge {
namespace {

constexpr std::string_view kSpare = "p-";
constexpr std::size_t kReady = 32;  // filled up again when half of them are gone
// Dropped together, so that the thread does not wake up between the calls of one client.
constexpr std::size_t kTogether = 16;
constexpr auto kLongestDelay = std::chrono::milliseconds(100);

Result<void> drop(int root, const std::string& name) {
  btrfs_ioctl_vol_args_v2 arguments{};
  std::memcpy(arguments.name, name.c_str(), name.size() + 1);
  if (::ioctl(root, BTRFS_IOC_SNAP_DESTROY_V2, &arguments) != 0 && errno != ENOENT) return errno_error("drop subvolume " + name, errno);
  return {};
}

// A launch gives them to the sandbox's ids.
Result<void> make_directories(int subvolume) {
  for (const char* name : {"upper", "work"}) {
    struct stat made {};
    if (::mkdirat(subvolume, name, 0755) != 0 || ::fstatat(subvolume, name, &made, AT_SYMLINK_NOFOLLOW) != 0)
      return errno_error(std::string("make ") + name, errno);
    if ((made.st_mode & 0777) != 0755 && ::fchmodat(subvolume, name, 0755, 0) != 0) return errno_error(std::string("set the mode of ") + name, errno);
  }
  return {};
}

}  // namespace

Result<std::uint64_t> tree_of(int fd) {
  btrfs_ioctl_ino_lookup_args lookup{};
  lookup.objectid = 256;  // BTRFS_FIRST_FREE_OBJECTID: the top of a subvolume
  if (::ioctl(fd, BTRFS_IOC_INO_LOOKUP, &lookup) != 0) return errno_error("look up the subvolume", errno);
  return std::uint64_t{lookup.treeid};
}

Result<std::unique_ptr<SubvolumeStock>> SubvolumeStock::open(int root) {
  std::unique_ptr<SubvolumeStock> stock(new SubvolumeStock(root));
  DSEC_ASSIGN(std::vector<std::string> names, sys::list_directory("/proc/self/fd/" + std::to_string(root)));
  for (std::string& name : names) {
    if (!name.starts_with(kSpare)) continue;
    std::uint64_t number = 0;
    std::from_chars(name.data() + kSpare.size(), name.data() + name.size(), number);
    stock->next_number_ = std::max(stock->next_number_, number + 1);
    stock->trash_.push_back(std::move(name));
  }
  stock->thread_ = std::thread([self = stock.get()] { self->run(); });
  return stock;
}

SubvolumeStock::~SubvolumeStock() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

std::string SubvolumeStock::next_name() {
  const std::lock_guard lock(mutex_);
  return std::string(kSpare) + std::to_string(next_number_++);
}

Result<Subvolume> SubvolumeStock::snapshot(int source) {
  Subvolume made{.name = next_name(), .directory = {}};
  btrfs_ioctl_vol_args_v2 arguments{};
  arguments.fd = source;
  arguments.flags = BTRFS_SUBVOL_RDONLY;
  std::memcpy(arguments.name, made.name.c_str(), made.name.size() + 1);
  if (::ioctl(root_, BTRFS_IOC_SNAP_CREATE_V2, &arguments) != 0) return errno_error("take a snapshot", errno);
  Result<sys::Fd> directory = sys::open_at(root_, made.name, O_RDONLY | O_DIRECTORY);
  if (!directory.ok()) {
    throw_away(made.name);
    return std::move(directory).error();
  }
  made.directory = std::move(directory).value();
  return made;
}

Result<Subvolume> SubvolumeStock::make() {
  Subvolume made{.name = next_name(), .directory = {}};
  btrfs_ioctl_vol_args_v2 arguments{};
  std::memcpy(arguments.name, made.name.c_str(), made.name.size() + 1);
  if (::ioctl(root_, BTRFS_IOC_SUBVOL_CREATE_V2, &arguments) != 0) return errno_error("make a subvolume", errno);
  const Result<void> known = [&]() -> Result<void> {
    DSEC_ASSIGN(made.directory, sys::open_at(root_, made.name, O_RDONLY | O_DIRECTORY));
    DSEC_ASSIGN(made.tree, tree_of(made.directory.get()));
    return make_directories(made.directory.get());
  }();
  if (known.ok()) return made;
  (void)drop(root_, made.name);  // the first error is the one to tell
  return known.error();
}

Result<Subvolume> SubvolumeStock::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!spares_.empty()) {
      Subvolume spare = std::move(spares_.front());
      spares_.pop_front();
      if (spares_.size() < kReady / 2 && !std::exchange(filling_, true)) changed_.notify_one();
      return spare;
    }
  }
  return make();
}

void SubvolumeStock::throw_away(std::string name) {
  std::size_t waiting = 0;
  {
    const std::lock_guard lock(mutex_);
    trash_.push_back(std::move(name));
    waiting = trash_.size();
  }
  if (waiting == 1 || waiting == kTogether) changed_.notify_one();
}

bool SubvolumeStock::wait_for_drop(const std::string& name) {
  std::unique_lock lock(mutex_);
  const auto queued = [&] { return std::find(trash_.begin(), trash_.end(), name) != trash_.end(); };
  if (!queued()) return false;
  hurried_ = true;
  changed_.notify_one();
  dropped_.wait(lock, [&] { return !queued(); });
  return true;
}

void SubvolumeStock::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || filling_ || !trash_.empty(); });
    const auto due = [this] { return stopping_ || filling_ || hurried_ || trash_.size() >= kTogether; };
    if (!trash_.empty() && !due()) changed_.wait_for(lock, kLongestDelay, due);
    while (!trash_.empty()) {
      const std::string name = trash_.front();
      lock.unlock();
      if (Result<void> dropped = drop(root_, name); !dropped.ok()) log_warning("the next start drops it", {{"why", dropped.error().message()}});
      lock.lock();
      trash_.pop_front();
      dropped_.notify_all();
    }
    hurried_ = false;
    if (stopping_) return;
    if (!filling_) continue;
    lock.unlock();
    Result<Subvolume> made = make();
    lock.lock();
    // After an error launches make their own, and tell theirs.
    filling_ = made.ok() && spares_.size() + 1 < kReady;
    if (made.ok()) spares_.push_back(std::move(made).value());
  }
}

}  // namespace dsec::edge
