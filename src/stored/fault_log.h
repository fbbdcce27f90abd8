// What readers met that they should not: a file of JSON lines that outlives this
// process, for whoever has to say of a sandbox that its data was at fault.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "sys/fd.h"

namespace dsec::stored {

enum class FaultKind { kError, kStall };

struct Fault {
  FaultKind kind = FaultKind::kError;
  std::string data;              // hex of the object
  std::uint32_t reader_pid = 0;  // of the host; 0 = not known: whoever uses the object may have met it
  std::string reader_cgroup;     // its place below the v2 hierarchy; "" = not known
  std::uint64_t waited_ms = 0;
  std::string why;
};

// {"at_ms":…,"kind":"error"|"stall","data":"…","pid":…,"cgroup":"…","waited_ms":…,"why":"…"}; a
// line is written by one call. The same reader's fault of one kind with one object
// is written once a second. Safe on any thread.
class FaultLog {
 public:
  // Starts the file anew when it has become large.
  static Result<std::unique_ptr<FaultLog>> open(const std::string& path);
  void note(const Fault& fault);

 private:
  explicit FaultLog(sys::Fd file) : file_(std::move(file)) {}

  const sys::Fd file_;
  std::mutex mutex_;  // guards last_
  std::map<std::string, Instant> last_;
};

}  // namespace dsec::stored
