// Memory of other processes and of their cgroup, given back from outside.
//
// Nothing runs inside for it: it works on frozen processes, and on ones that would rather not.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "sys/fd.h"

namespace dsec::sys {

struct MemoryRange {
  std::uint64_t start = 0;
  std::uint64_t size = 0;
};

// The mappings of a process whose pages no file on disk holds: what swap is for. From
// the text of /proc/<pid>/maps.
std::vector<MemoryRange> swappable_ranges(std::string_view maps);

enum class MemoryAdvice { kPageOut, kWillNeed };
// Advises a whole process, in parts between which `cancelled` and the deadline are
// looked at. What the kernel refuses for a single range is passed over. kNotFound
// when the process has gone.
Result<void> advise_process(int pid, MemoryAdvice advice, const std::atomic<bool>& cancelled, Deadline deadline);

// Writes to a control file whose write works for seconds, and is given up with
// kCancelled or kDeadlineExceeded. EAGAIN, a reclaim that did not find as much as was asked for, is fine.
Result<void> write_patiently(int dir, const std::string& path, const std::string& text, const std::atomic<bool>& cancelled, Deadline deadline);

}  // namespace dsec::sys
