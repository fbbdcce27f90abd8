// UpperPool: where the files that a sandbox writes are kept, and how the limit
// on them holds.
//
// Calls may block (an ioctl, tens of microseconds; some milliseconds while the
// pool's file system commits) and are safe on any worker thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/result.h"
#include "edge/subvolume_stock.h"
#include "sys/descriptor_keeper.h"
#include "sys/fd.h"

namespace dsec::edge {

// Owns the directory that the WritableLayer lends to the backend.
struct UpperLayer {
  sys::Fd directory;  // invalid for tmpfs
  backend::WritableLayer layer() const {
    return {directory ? backend::WritableLayer::Kind::kDirectory : backend::WritableLayer::Kind::kTmpfs, directory.get(), limit_bytes};
  }
  std::uint64_t limit_bytes = 0;
};

// A writable layer as it was at one moment. Goes with this object, or with the next
// start when the process dies before.
class UpperSnapshot {
 public:
  virtual ~UpperSnapshot() = default;
  virtual backend::WritableLayer layer() const = 0;
};

class UpperPool {
 public:
  virtual ~UpperPool() = default;
  // What `id` writes stays within limit_bytes: ENOSPC or EDQUOT inside, never a
  // full host. An id that exists is kConflict.
  virtual Result<UpperLayer> create(const std::string& id, std::uint64_t limit_bytes) = 0;
  // That of `id`, as create() gave it. kNotFound when there is none here.
  virtual Result<UpperLayer> open(const std::string& id) = 0;
  // What that of `id` holds now, for as long as the snapshot lives; whatever is written
  // later is not in it. kUnsupported where only the layer itself can be read.
  virtual Result<std::unique_ptr<UpperSnapshot>> snapshot(const std::string& id) = 0;
  // Bytes that it takes of its limit, as the file system last counted: at its commit, at most half a
  // minute ago. kUnsupported where the backend counts.
  virtual Result<std::uint64_t> used_bytes(const std::string& id) = 0;
  // Grows with each change of what `id` has written that a snapshot of it would have seen, and only then.
  // kUnsupported where nothing tells.
  virtual Result<std::uint64_t> change_mark(const std::string& id) = 0;
  // Idempotent. Space and name are free at once or soon after; create() waits for the name.
  virtual Result<void> remove(const std::string& id) = 0;
  // Removes what belongs to none of `live`; returns how many.
  virtual Result<std::size_t> sweep(const std::vector<std::string>& live) = 0;
  virtual std::string describe() const = 0;  // for doctor: "btrfs pool, 180 GiB, simple quota"
};

// Made by the backend for each sandbox and gone with it; charged to its memory.
class TmpfsUpperPool final : public UpperPool {
 public:
  Result<UpperLayer> create(const std::string& id, std::uint64_t limit_bytes) override;
  Result<UpperLayer> open(const std::string& id) override;
  Result<std::unique_ptr<UpperSnapshot>> snapshot(const std::string& id) override;
  Result<std::uint64_t> used_bytes(const std::string& id) override;
  Result<std::uint64_t> change_mark(const std::string& id) override;
  Result<void> remove(const std::string& id) override;
  Result<std::size_t> sweep(const std::vector<std::string>& live) override;
  std::string describe() const override;
};

// One subvolume with a quota for each sandbox, in a btrfs file system that lives
// in a sparse file on one loop device with direct I/O. The file system is never
// attached to the host's tree: the detached mount is a descriptor, and the
// keeper holds it while this process is not there.
class BtrfsUpperPool final : public UpperPool {
 public:
  struct Options {
    std::string image;             // path of the sparse file; made when missing
    std::uint64_t size_bytes = 0;  // of a new one; 0 = four fifths of the free space
  };
  // kUnsupported, with what is missing, where the kernel or mkfs.btrfs cannot.
  static Result<std::unique_ptr<BtrfsUpperPool>> open(Options options, sys::DescriptorKeeper& keeper);

  Result<UpperLayer> create(const std::string& id, std::uint64_t limit_bytes) override;
  Result<UpperLayer> open(const std::string& id) override;
  Result<std::unique_ptr<UpperSnapshot>> snapshot(const std::string& id) override;
  Result<std::uint64_t> used_bytes(const std::string& id) override;
  Result<std::uint64_t> change_mark(const std::string& id) override;
  Result<void> remove(const std::string& id) override;
  Result<std::size_t> sweep(const std::vector<std::string>& live) override;
  std::string describe() const override;
  // For a clean stop with no sandbox left: the keeper lets go, so that the mount
  // and the loop device end with this process.
  Result<void> release();

 private:
  BtrfsUpperPool(sys::DescriptorKeeper& keeper, sys::Fd root, std::string quota, std::string quota_groups, std::unique_ptr<SubvolumeStock> stock)
      : keeper_(keeper), root_(std::move(root)), quota_(std::move(quota)), quota_groups_(std::move(quota_groups)), stock_(std::move(stock)) {}

  sys::DescriptorKeeper& keeper_;
  const sys::Fd root_;      // the top of the file system, open for ioctls
  const std::string quota_;  // "simple" or "full"
  const std::string quota_groups_;  // a directory of /sys
  const std::unique_ptr<SubvolumeStock> stock_;
};

// Which pool a sandbox gets: small ones live in memory, the others in the btrfs
// pool where there is one.
class UpperPools {
 public:
  UpperPools(std::unique_ptr<UpperPool> disk, std::string why_no_disk)
      : disk_(std::move(disk)), why_no_disk_(std::move(why_no_disk)) {}
  // A tmpfs holds at most half of the sandbox's memory, so that a full disk is
  // ENOSPC and not an out-of-memory kill.
  Result<UpperLayer> create(const std::string& id, std::uint64_t disk_bytes, std::uint64_t memory_bytes);
  // Of a sandbox that lives: wherever create() put it.
  Result<UpperLayer> open(const std::string& id);
  Result<std::unique_ptr<UpperSnapshot>> snapshot(const std::string& id);
  Result<std::uint64_t> used_bytes(const std::string& id);
  Result<std::uint64_t> change_mark(const std::string& id);
  Result<void> remove(const std::string& id);
  Result<std::size_t> sweep(const std::vector<std::string>& live);
  std::string describe() const;

 private:
  TmpfsUpperPool memory_;
  std::unique_ptr<UpperPool> disk_;  // null where there is none
  std::string why_no_disk_;
};

}  // namespace dsec::edge
