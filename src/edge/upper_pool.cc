#include "edge/upper_pool.h"

#include <algorithm>

namespace dsec::edge {

Result<UpperLayer> TmpfsUpperPool::create(const std::string&, std::uint64_t limit_bytes) {
  return UpperLayer{sys::Fd(), limit_bytes};
}

Result<UpperLayer> TmpfsUpperPool::open(const std::string&) { return UpperLayer{}; }

Result<std::unique_ptr<UpperSnapshot>> TmpfsUpperPool::snapshot(const std::string&) {
  return Error(ErrorCode::kUnsupported, "of what lies in memory there are no snapshots");
}

Result<std::uint64_t> TmpfsUpperPool::used_bytes(const std::string&) {
  return Error(ErrorCode::kUnsupported, "the backend counts what lies in memory");
}

Result<std::uint64_t> TmpfsUpperPool::change_mark(const std::string&) {
  return Error(ErrorCode::kUnsupported, "in memory what is written through a mapping leaves no mark");
}

Result<void> TmpfsUpperPool::remove(const std::string&) { return {}; }
Result<std::size_t> TmpfsUpperPool::sweep(const std::vector<std::string>&) { return std::size_t{0}; }
std::string TmpfsUpperPool::describe() const { return "tmpfs, at most half of the sandbox's memory"; }

Result<UpperLayer> UpperPools::create(const std::string& id, std::uint64_t disk_bytes, std::uint64_t memory_bytes) {
  const std::uint64_t fits_in_memory = memory_bytes / 2;
  if (disk_ != nullptr && disk_bytes > fits_in_memory) return disk_->create(id, disk_bytes);
  return memory_.create(id, std::min(disk_bytes, fits_in_memory));
}

Result<UpperLayer> UpperPools::open(const std::string& id) {
  Result<UpperLayer> on_disk = disk_ != nullptr ? disk_->open(id) : Error(ErrorCode::kNotFound, "no disk pool");
  return on_disk.ok() || on_disk.error().code() != ErrorCode::kNotFound ? std::move(on_disk) : memory_.open(id);
}

Result<std::unique_ptr<UpperSnapshot>> UpperPools::snapshot(const std::string& id) {
  Result<std::unique_ptr<UpperSnapshot>> on_disk = disk_ != nullptr ? disk_->snapshot(id) : Error(ErrorCode::kNotFound, "no disk pool");
  return on_disk.ok() || on_disk.error().code() != ErrorCode::kNotFound ? std::move(on_disk) : memory_.snapshot(id);
}

Result<std::uint64_t> UpperPools::used_bytes(const std::string& id) {
  Result<std::uint64_t> on_disk = disk_ != nullptr ? disk_->used_bytes(id) : Error(ErrorCode::kNotFound, "no disk pool");
  return on_disk.ok() || on_disk.error().code() != ErrorCode::kNotFound ? std::move(on_disk) : memory_.used_bytes(id);
}

Result<std::uint64_t> UpperPools::change_mark(const std::string& id) {
  Result<std::uint64_t> on_disk = disk_ != nullptr ? disk_->change_mark(id) : Error(ErrorCode::kNotFound, "no disk pool");
  return on_disk.ok() || on_disk.error().code() != ErrorCode::kNotFound ? std::move(on_disk) : memory_.change_mark(id);
}

Result<void> UpperPools::remove(const std::string& id) {
  if (disk_ == nullptr) return {};
  return disk_->remove(id);
}

Result<std::size_t> UpperPools::sweep(const std::vector<std::string>& live) {
  if (disk_ == nullptr) return std::size_t{0};
  return disk_->sweep(live);
}

std::string UpperPools::describe() const {
  if (disk_ == nullptr) return memory_.describe() + " (no disk pool: " + why_no_disk_ + ")";
  return disk_->describe() + "; " + memory_.describe();
}

}  // namespace dsec::edge
