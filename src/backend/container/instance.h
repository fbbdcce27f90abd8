// A running container, and one command's processes in it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "backend/backend.h"
#include "backend/container/record.h"
#include "backend/container/spawner_client.h"
#include "sys/cgroup.h"

namespace dsec::backend::container {

// What every container of one backend shares; outlives none of them.
struct Shared {
  Shared(sys::CgroupTree tree, std::string spawner_path) : cgroups(std::move(tree)), spawner(std::move(spawner_path)) {}
  sys::CgroupTree cgroups;
  SpawnerClient spawner;
  std::string agent_dir;     // <run>/a
  sys::Fd home_network;      // the host's network namespace

  // Instances that were launched or adopted and not destroyed, by slot. A spawner
  // that was started again may have given the slot of one that is over, and not
  // destroyed yet, to another.
  void know(const Record& record) {
    const std::lock_guard lock(mutex);
    known[record.slot] = {record.generation, record.socket_name};
  }
  void forget(const Record& record) {
    const std::lock_guard lock(mutex);
    const auto found = known.find(record.slot);
    if (found != known.end() && found->second.generation == record.generation) known.erase(found);
  }
  struct Known {
    std::uint64_t generation = 0;
    std::string socket_name;
  };
  std::mutex mutex;  // guards known
  std::map<std::string, Known> known;
};

// What the operations of one sandbox have in common.
struct OperationScope {
  // True from before the slot is given back: from then on it, and each cgroup in it,
  // may be another's. Under the mutex it is set, and nothing is killed while it is.
  std::atomic<bool> given_back{false};
  std::mutex mutex;
  std::atomic<bool> ever_frozen{false};  // false: nobody has to ask for how long
};

class ContainerOperation final : public Operation {
 public:
  // What the cgroup had counted before the command.
  struct Before {
    std::uint64_t cpu_usec = 0;
    std::uint64_t frozen_usec = 0;
  };
  // kKnown: nobody but this object can have killed it.
  enum class Past { kKnown, kUnknown };
  // What `cgroup` has counted so far; frozen time only where it was ever frozen.
  static Before counted(int cgroup, bool ever_frozen);
  ContainerOperation(sys::Fd payload, std::string name, sys::Fd cgroup, Before before, Past past, std::shared_ptr<OperationScope> scope)
      : payload_(std::move(payload)), name_(std::move(name)), cgroup_(std::move(cgroup)), before_(before), killed_(past == Past::kUnknown),
        scope_(std::move(scope)) {}
  // Removes the cgroup if nothing is left in it; else that is done with the slot,
  // as with one that its sandbox never used.
  ~ContainerOperation() override;

  int cgroup_fd() const override { return cgroup_.get(); }
  Result<void> kill() override;
  bool populated() const override;
  std::uint64_t cpu_usec() const override;
  std::uint64_t frozen_usec() const override;
  std::string record() const override;
  std::unique_ptr<Operation> renew() override;

 private:
  bool counts() const;  // false once renewed or given back: nothing of it is ours to look at

  sys::Fd payload_;
  std::string name_;
  sys::Fd cgroup_;  // invalid once renewed
  const Before before_;
  std::mutex mutex_;  // kill() runs beside the event loop: it and renew() take turns
  bool killed_;       // or may have been: Linux 6.18 lets nothing be born in such a cgroup
  const std::shared_ptr<OperationScope> scope_;
};

// The record of an operation: its id, then what its cgroup had counted before.
struct OperationRecord {
  std::string id;
  ContainerOperation::Before before;
};
std::string encode(const OperationRecord& record);
Result<OperationRecord> decode_operation_record(const std::string& text);

class ContainerInstance final : public Instance {
 public:
  enum class Origin { kLaunched, kAdopted };
  // `greeted`: the first stream, if there is one already.
  ContainerInstance(std::shared_ptr<Shared> shared, Record record, sys::Fd pidfd, Origin origin, sys::Fd greeted = {})
      : shared_(std::move(shared)), record_(std::move(record)), pidfd_(std::move(pidfd)), greeted_(std::move(greeted)),
        first_operation_left_(origin == Origin::kLaunched) {}

  std::string record() const override { return encode(record_); }
  bool owns_cgroup(std::string_view path) const override { return path.find("/slots/" + record_.slot + "/") != std::string_view::npos; }
  int pidfd() const override { return pidfd_.get(); }
  Result<sys::Fd> dial_agent(Deadline deadline) override;
  Result<sys::Fd> dial_port(std::uint16_t port, Deadline deadline) override;
  Result<std::vector<sys::Fd>> listen_loopback(const std::vector<LoopbackListener>& listeners) override;
  Result<std::unique_ptr<Operation>> open_operation(const std::string& op_id) override;
  std::unique_ptr<Operation> first_operation() override;
  Result<std::unique_ptr<Operation>> find_operation(const std::string& record) override;
  Result<void> freeze(Deadline deadline) override;
  Result<void> thaw(Deadline deadline) override;
  Result<Reclaimed> reclaim(const std::atomic<bool>& cancelled, Deadline deadline) override;
  void prefetch() override;
  Result<WrittenTree> open_written(const WritableLayer& upper) override;
  Result<MemoryUse> memory() override;
  Result<WrittenSize> written_size() override;
  Result<Usage> usage() override;
  Result<EndEvidence> evidence() override;
  Result<void> destroy(Deadline deadline) override;

 private:
  Result<std::unique_ptr<Operation>> operation(const OperationRecord& record, ContainerOperation::Past past);
  Result<sys::Fd> socket_inside(int family, int type);
  Result<sys::Fd> mount_of_upper_in_memory();

  const std::shared_ptr<Shared> shared_;
  const Record record_;
  const sys::Fd pidfd_;
  sys::Fd greeted_;  // until dial_agent() gives it away
  bool first_operation_left_;
  bool over_ = false;  // destroy() has done its work
  const std::shared_ptr<OperationScope> scope_ = std::make_shared<OperationScope>();
  std::atomic<bool> killed_{false};
  std::atomic<std::uint64_t> oom_kills_{0};  // as last seen; the cgroup goes with destroy()
};

}  // namespace dsec::backend::container
