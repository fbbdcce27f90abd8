#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace dsec::backend::fake {

// Version, pid, the pid's identity and the socket's path: enough to find the
// process again and to tell it from a later one of the same number.
struct PlainRecord {
  pid_t pid = 0;
  std::uint64_t identity = 0;
  std::string socket;
};
std::string encode(const PlainRecord& record);
Result<PlainRecord> decode_plain_record(const std::string& text);

Result<sys::Fd> open_process(pid_t pid);
Result<std::uint64_t> identity_of(int pidfd);
// Every process below `pid`, children before theirs.
std::vector<pid_t> descendants(pid_t pid);

class PlainInstance final : public Instance {
 public:
  // `greeted`: the first stream, if there is one already.
  PlainInstance(PlainRecord record, sys::Fd pidfd, sys::Fd greeted = {})
      : record_(std::move(record)), pidfd_(std::move(pidfd)), greeted_(std::move(greeted)) {}

  std::string record() const override { return encode(record_); }
  bool owns_cgroup(std::string_view) const override { return false; }
  int pidfd() const override { return pidfd_.get(); }
  Result<sys::Fd> dial_agent(Deadline deadline) override;
  Result<sys::Fd> dial_port(std::uint16_t port, Deadline deadline) override;
  Result<std::vector<sys::Fd>> listen_loopback(const std::vector<LoopbackListener>& listeners) override;
  Result<std::unique_ptr<Operation>> open_operation(const std::string& op_id) override;
  std::unique_ptr<Operation> first_operation() override { return nullptr; }
  Result<std::unique_ptr<Operation>> find_operation(const std::string& record) override;
  Result<void> freeze(Deadline deadline) override;
  Result<void> thaw(Deadline deadline) override;
  Result<Reclaimed> reclaim(const std::atomic<bool>& cancelled, Deadline deadline) override;
  void prefetch() override {}
  Result<WrittenTree> open_written(const WritableLayer& upper) override;
  Result<MemoryUse> memory() override { return Error(ErrorCode::kUnsupported, "nothing counts a plain process's memory"); }
  Result<WrittenSize> written_size() override { return Error(ErrorCode::kUnsupported, "a plain process writes into the host's own files"); }
  Result<Usage> usage() override;
  Result<EndEvidence> evidence() override;
  Result<void> destroy(Deadline deadline) override;

 private:
  bool ended() const;

  const PlainRecord record_;
  const sys::Fd pidfd_;
  sys::Fd greeted_;  // until dial_agent() gives it away
  std::mutex mutex_;  // guards evidence_
  EndEvidence evidence_;
  std::atomic<bool> destroyed_{false};
};

}  // namespace dsec::backend::fake
