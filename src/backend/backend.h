// The Backend port: what runs a sandbox, seen from the edge.
//
// Every call may block and is made on a worker thread, never on the event
// loop, unless its comment says otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "model/sandbox.h"
#include "sys/fd.h"

namespace dsec::backend {

// A read-only layer: a detached mount, borrowed for the call. `digest` names it,
// so that a backend can keep what it derived from it.
struct LayerMount {
  std::string digest;
  int fd = -1;
};

// Where a sandbox writes. kTmpfs: made by the backend, charged to the sandbox's
// memory. kDirectory: a directory made by the edge's pool, limited by it.
struct WritableLayer {
  enum class Kind { kTmpfs, kDirectory };
  Kind kind = Kind::kTmpfs;
  int directory_fd = -1;  // borrowed; kDirectory only
  std::uint64_t limit_bytes = 0;
};

struct Rootfs {
  std::vector<LayerMount> layers;  // lowest first
  WritableLayer upper;
};

// What a sandbox has written, for somebody who reads it: the upper of its overlay.
struct WrittenTree {
  sys::Fd directory;           // open for reading, on a read-only mount of its own
  std::uint32_t first_id = 0;  // the host's number of the sandbox's id 0
  std::uint32_t ids = 0;       // how many there are
};

// What a writable layer takes now.
struct WrittenSize {
  std::uint64_t bytes = 0;
  std::optional<std::uint64_t> files;  // with directories, links and the like; where it is counted
};

struct LaunchSpec {
  std::string id;
  std::string hostname;
  model::Resources resources;
  model::Priority priority = model::Priority::kLatency;
  bool no_new_privs = false;
  // Written to /etc before anything runs, in place of what the image has there:
  // "hostname", "hosts", "resolv.conf". At most 16 names, without "/".
  std::map<std::string, std::string> etc_files;
  // Written to a stream to aether before anything runs; that stream is the first
  // that dial_agent() returns. At most 4 KiB; "" = none.
  std::string greeting;
};

struct Capabilities {
  std::string name;
  bool available = false;
  std::string reason;  // why not, for doctor
  std::vector<std::string> notes;
};

struct Usage {
  std::uint64_t cpu_usec = 0;
  std::uint64_t memory_bytes = 0;
  std::uint64_t memory_peak_bytes = 0;
  std::uint64_t processes = 0;
  std::uint64_t oom_kills = 0;  // events of this sandbox's own limit
  std::uint64_t stalled_usec = 0;  // pressure (PSI, full) that its own limits do not explain
};

// What a payload holds of the node's memory now.
struct MemoryUse {
  std::uint64_t working_bytes = 0;  // without page cache that can be dropped at once
  std::uint64_t swapped_bytes = 0;
  std::uint64_t stalled_usec = 0;  // in which all of it waited for memory, its own limit's included
};

// Memory of a payload before and after a part of it was given back.
struct Reclaimed {
  std::uint64_t before_bytes = 0;  // page cache included
  std::uint64_t after_bytes = 0;
  std::uint64_t swapped_bytes = 0;  // now in swap; 0 where the node has none
};

// What the host knows about an ended instance; nothing in it comes from inside.
struct EndEvidence {
  bool ended = false;
  std::optional<int> wait_status;  // of PID 1, when the kernel still tells
  std::uint64_t oom_kills = 0;
  bool killed_by_platform = false;  // destroy() was called
};

// One command's processes: whatever it forked, detached or hid is in here.
class Operation {
 public:
  virtual ~Operation() = default;
  // Passed to the agent with the exec request; -1 where the agent makes its own.
  virtual int cgroup_fd() const = 0;
  // Ends every process of the operation. Idempotent; returns when the kill is sent.
  virtual Result<void> kill() = 0;
  // false once no process is left. Cheap enough for the event loop.
  virtual bool populated() const = 0;
  virtual std::uint64_t cpu_usec() const = 0;
  virtual std::uint64_t frozen_usec() const = 0;
  // By this, and no longer than 128 bytes, find_operation() finds it again.
  virtual std::string record() const = 0;
  // For another command in the same place, counting from 0: where no process is
  // left and kill() was never called, else nullptr. This one is then over: its
  // methods do nothing. Cheap enough for the event loop.
  virtual std::unique_ptr<Operation> renew() = 0;
};

enum class LoopbackKind { kTcp, kUdp };
struct LoopbackListener {
  LoopbackKind kind = LoopbackKind::kTcp;
  std::uint16_t port = 0;
};

// One running sandbox, owned by exactly one edge. Calls come one at a time,
// except pidfd(), usage(), memory(), written_size(), reclaim() and open_operation(), which may run beside them. The
// destructor only lets go: the sandbox runs on and can be adopted.
class Instance {
 public:
  virtual ~Instance() = default;
  // Versioned bytes from which adopt() finds this instance again.
  virtual std::string record() const = 0;
  // Whether processes of this cgroup, as /proc/<pid>/cgroup tells it for the v2
  // hierarchy, are the sandbox's.
  virtual bool owns_cgroup(std::string_view path) const = 0;
  // Readable when the sandbox is over, all of its processes gone. Not blocking.
  virtual int pidfd() const = 0;
  // A new byte stream to aether. Also works before aether has started.
  virtual Result<sys::Fd> dial_agent(Deadline deadline) = 0;
  // A stream to 127.0.0.1:port inside. kUnavailable when nothing listens.
  virtual Result<sys::Fd> dial_port(std::uint16_t port, Deadline deadline) = 0;
  // Bound sockets on the sandbox's own loopback, TCP ones listening.
  virtual Result<std::vector<sys::Fd>> listen_loopback(const std::vector<LoopbackListener>& listeners) = 0;
  virtual Result<std::unique_ptr<Operation>> open_operation(const std::string& op_id) = 0;
  // One that was made with the sandbox, whatever command it is for: find_operation()
  // needs its record. Once, after launch(); nullptr where there is none.
  virtual std::unique_ptr<Operation> first_operation() = 0;
  // Finds the operation of an adopted sandbox again, by its record().
  virtual Result<std::unique_ptr<Operation>> find_operation(const std::string& record) = 0;
  // Every process of the payload stands when it returns; after an error it runs.
  // Frozen time is told by frozen_usec(). thaw() is idempotent.
  virtual Result<void> freeze(Deadline deadline) = 0;
  virtual Result<void> thaw(Deadline deadline) = 0;
  // Gives back as much of a payload's memory as can be had: page cache, and what swap
  // takes. Ends early when `cancelled` becomes true, as when the payload is wanted
  // again; what was given back comes back as it is touched. Runs beside thaw(), and beside a payload that runs.
  virtual Result<Reclaimed> reclaim(const std::atomic<bool>& cancelled, Deadline deadline) = 0;
  // Begins to bring back what reclaim() moved to swap. A hint.
  virtual void prefetch() = 0;
  // `upper` as it was lent to launch(). What is read is one state while the payload
  // is frozen; the tree can be read after the end too, until it is closed.
  virtual Result<WrittenTree> open_written(const WritableLayer& upper) = 0;
  // Cheaper than usage(): it is asked of each sandbox all the time.
  virtual Result<MemoryUse> memory() = 0;
  // Of a writable layer of kind kTmpfs. kUnsupported where the backend made none.
  virtual Result<WrittenSize> written_size() = 0;
  virtual Result<Usage> usage() = 0;
  virtual Result<EndEvidence> evidence() = 0;
  // Kills everything and removes what the backend made. Idempotent, works in
  // every state; after an error it can be called again.
  virtual Result<void> destroy(Deadline deadline) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual Capabilities capabilities() const = 0;
  // After an error nothing of the sandbox ran and nothing is left of it.
  // kInvalidArgument: what the image holds does not let it run; every other code
  // is the platform's.
  virtual Result<std::unique_ptr<Instance>> launch(const LaunchSpec& spec, const Rootfs& rootfs, Deadline deadline) = 0;
  // From record(). kNotFound when it is not running any more; what was left of it is then removed.
  virtual Result<std::unique_ptr<Instance>> adopt(const std::string& record) = 0;
  // Removes everything of this backend on this node that no given record names:
  // what a crash left between two log entries. Returns how many.
  virtual Result<std::size_t> sweep(const std::vector<std::string>& records) = 0;
};

}  // namespace dsec::backend
