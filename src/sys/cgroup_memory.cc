// The memory of one slot's payload: what it is, and how it is given back.
#include <algorithm>
#include <cerrno>

#include "sys/cgroup.h"
#include "sys/cgroup_files.h"
#include "sys/file.h"
#include "sys/reclaim.h"

namespace dsec::sys {

namespace {

constexpr std::uint64_t kReclaimPart = 32 << 20;

void add_pids(int cgroup, std::vector<int>& pids) {
  const auto text = read_file_at(cgroup, "cgroup.procs");
  if (!text.ok()) return;
  for (std::size_t at = 0; at < text->size();) {
    if (const auto pid = static_cast<int>(number(std::string_view(*text).substr(at))); pid > 0) pids.push_back(pid);
    const std::size_t end = text->find('\n', at);
    at = end == std::string::npos ? text->size() : end + 1;
  }
}

}  // namespace

Result<std::vector<int>> CgroupTree::payload_pids(const std::string& slot) const {
  DSEC_ASSIGN(const Fd payload, open_payload(slot));
  std::vector<int> pids;
  add_pids(payload.get(), pids);
  for (const std::string& name : children(payload.get()))
    if (const auto operation = open_dir(payload.get(), name); operation.ok()) add_pids(operation->get(), pids);
  return pids;
}

Result<CgroupMemory> CgroupTree::memory(const std::string& slot) const {
  DSEC_ASSIGN(const Fd payload, open_payload(slot));
  CgroupMemory out{.bytes = 0, .swapped_bytes = 0, .inactive_file_bytes = 0, .stalled_usec = full_stall(payload.get(), "memory.pressure")};
  if (const int memory = v1(Controller::kMemory); memory >= 0) {
    out.bytes = read_number(memory, slot + "/memory.usage_in_bytes");
    const auto stat = read_file_at(memory, slot + "/memory.stat");
    if (!stat.ok()) return out;
    out.swapped_bytes = cgroup_field(*stat, "total_swap");
    out.inactive_file_bytes = cgroup_field(*stat, "total_inactive_file");
  } else if (driven_by_v2(Controller::kMemory)) {
    out.bytes = read_number(payload.get(), "memory.current");
    out.swapped_bytes = read_number(payload.get(), "memory.swap.current");
    out.inactive_file_bytes = read_field(payload.get(), "memory.stat", "inactive_file");
  }
  return out;
}

Result<void> CgroupTree::allow_swap(const std::string& slot, bool allowed) const {
  if (!driven_by_v2(Controller::kMemory)) return {};
  Result<void> written = write_at(slots_.get(), slot + "/payload/memory.swap.max", allowed ? "max" : "0");
  if (!written.ok() && written.error().error_number() == ENOENT) return {};  // a kernel without swap
  return written;
}

Result<void> CgroupTree::reclaim(const std::string& slot, const std::atomic<bool>& cancelled, Deadline deadline) const {
  if (const int memory = v1(Controller::kMemory); memory >= 0)
    return write_patiently(memory, slot + "/memory.force_empty", "0", cancelled, deadline);
  if (!driven_by_v2(Controller::kMemory)) return Error(ErrorCode::kUnsupported, "no controller of this host counts the sandbox's memory");
  DSEC_ASSIGN(const Fd payload, open_payload(slot));
  for (std::uint64_t left = read_number(payload.get(), "memory.current"); left > 0;) {
    DSEC_TRY(write_patiently(payload.get(), "memory.reclaim", std::to_string(std::min(left, kReclaimPart)), cancelled, deadline));
    const std::uint64_t now = read_number(payload.get(), "memory.current");
    if (now >= left) break;  // what is left is in use by others, or has nowhere to go
    left = now;
  }
  return {};
}

}  // namespace dsec::sys
