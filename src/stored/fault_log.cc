#include "stored/fault_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cerrno>

#include "base/log.h"
#include "sys/file.h"

namespace dsec::stored {

namespace {

constexpr auto kOnce = std::chrono::seconds(1);
constexpr std::size_t kRemembered = 4096;
constexpr off_t kLarge = 8 << 20;

}  // namespace

Result<std::unique_ptr<FaultLog>> FaultLog::open(const std::string& path) {
  DSEC_ASSIGN(sys::Fd file, sys::open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND, 0600));
  struct stat status {};
  if (::fstat(file.get(), &status) == 0 && status.st_size > kLarge && ::ftruncate(file.get(), 0) != 0) return errno_error("start " + path + " anew", errno);
  return std::unique_ptr<FaultLog>(new FaultLog(std::move(file)));
}

void FaultLog::note(const Fault& fault) {
  const char* kind = fault.kind == FaultKind::kError ? "error" : "stall";
  const std::string key = fault.data + " " + kind + " " + std::to_string(fault.reader_pid);
  {
    const std::lock_guard lock(mutex_);
    const Instant now = std::chrono::steady_clock::now();
    if (last_.size() >= kRemembered) std::erase_if(last_, [&](const auto& item) { return now - item.second >= kOnce; });
    const auto [found, fresh] = last_.emplace(key, now);
    if (!fresh && now - found->second < kOnce) return;
    found->second = now;
  }
  const auto at = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  const boost::json::object line = {{"at_ms", at},           {"kind", kind}, {"data", fault.data}, {"pid", fault.reader_pid},
                                    {"cgroup", fault.reader_cgroup}, {"waited_ms", fault.waited_ms}, {"why", fault.why}};
  if (const auto written = sys::write_all(file_.get(), boost::json::serialize(line) + "\n"); !written.ok())
    log_error("a data fault could not be noted", {{"data", fault.data}, {"why", written.error().message()}});
}

}  // namespace dsec::stored
