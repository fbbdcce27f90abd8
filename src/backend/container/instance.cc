#include "backend/container/instance.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/errno_text.h"
#include "base/fail_point.h"
#include "sys/process.h"

namespace dsec::backend::container {

namespace {

// PID 1's end takes everything along; past this, each cgroup is killed as well.
constexpr auto kGentleKill = std::chrono::milliseconds(500);
constexpr int kListenBacklog = 128;

// The address 127.0.0.1:port or [::1]:port.
struct Loopback {
  sockaddr_storage address{};
  socklen_t length = 0;
};
Loopback loopback(int family, std::uint16_t port) {
  Loopback out;
  if (family == AF_INET) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::memcpy(&out.address, &in, sizeof in);
    out.length = sizeof in;
  } else {
    sockaddr_in6 in6{};
    in6.sin6_family = AF_INET6;
    in6.sin6_port = htons(port);
    in6.sin6_addr = in6addr_loopback;
    std::memcpy(&out.address, &in6, sizeof in6);
    out.length = sizeof in6;
  }
  return out;
}

// Connects a non-blocking socket by the deadline; errno, or 0.
int connect_by(int fd, const Loopback& to, Deadline deadline) {
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&to.address), to.length) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  for (;;) {
    pollfd p{fd, POLLOUT, 0};
    const int n = ::poll(&p, 1, deadline.left_ms());
    if (n == 0) return ETIMEDOUT;
    if (n < 0 && errno == EINTR) continue;
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    return error;
  }
}

bool valid_operation_id(const std::string& id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  });
}

}  // namespace

Result<sys::Fd> ContainerInstance::dial_agent(Deadline) {
  if (sys::process_ended(pidfd_.get())) return Error(ErrorCode::kUnavailable, "the sandbox is over");
  if (greeted_) return std::move(greeted_);
  return sys::connect_unix(shared_->agent_dir + "/" + record_.socket_name, SOCK_STREAM);
}

// A socket belongs to the network namespace of the thread that makes it, for
// ever; so this thread goes in, makes it, and comes back.
Result<sys::Fd> ContainerInstance::socket_inside(int family, int type) {
  if (::setns(pidfd_.get(), CLONE_NEWNET) < 0)
    return Error(ErrorCode::kUnavailable, "enter the sandbox's network: " + errno_text(errno), errno);
  sys::Fd made(::socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int error = errno;
  // A thread left inside would make every later socket there.
  DSEC_CHECK(::setns(shared_->home_network.get(), CLONE_NEWNET) == 0);
  if (!made) return errno_error("make a socket in the sandbox's network", error);
  return made;
}

Result<sys::Fd> ContainerInstance::dial_port(std::uint16_t port, Deadline deadline) {
  int error = ECONNREFUSED;
  for (int family : {AF_INET, AF_INET6}) {
    DSEC_ASSIGN(sys::Fd fd, socket_inside(family, SOCK_STREAM));
    error = connect_by(fd.get(), loopback(family, port), deadline);
    if (error == 0) {
      ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
      return fd;
    }
    if (error == ETIMEDOUT) return Error(ErrorCode::kDeadlineExceeded, "port " + std::to_string(port) + " does not answer");
  }
  return Error(ErrorCode::kUnavailable, "nothing listens on port " + std::to_string(port), error);
}

Result<std::vector<sys::Fd>> ContainerInstance::listen_loopback(const std::vector<LoopbackListener>& listeners) {
  std::vector<sys::Fd> out;
  for (const LoopbackListener& wanted : listeners) {
    const bool tcp = wanted.kind == LoopbackKind::kTcp;
    DSEC_ASSIGN(sys::Fd fd, socket_inside(AF_INET, tcp ? SOCK_STREAM : SOCK_DGRAM));
    const int on = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const Loopback at = loopback(AF_INET, wanted.port);
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) < 0)
      return errno_error("bind port " + std::to_string(wanted.port) + " in the sandbox", errno);
    if (tcp && ::listen(fd.get(), kListenBacklog) < 0) return errno_error("listen in the sandbox", errno);
    out.push_back(std::move(fd));
  }
  return out;
}

Result<std::unique_ptr<Operation>> ContainerInstance::operation(const OperationRecord& record, ContainerOperation::Past past) {
  if (!valid_operation_id(record.id)) return invalid_argument("an operation's id has letters, digits, '-', '_' and '.' only");
  if (scope_->given_back.load()) return Error(ErrorCode::kNotFound, "the sandbox is over");
  DSEC_ASSIGN(sys::Fd payload, shared_->cgroups.open_payload(record_.slot));
  std::string name = "op-" + record.id;
  sys::Fd cgroup;
  if (past == ContainerOperation::Past::kKnown) {
    DSEC_ASSIGN(cgroup, sys::CgroupTree::make_operation(payload.get(), name));
  } else {
    const int opened = ::openat(payload.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0) {
      if (errno == ENOENT) return Error(ErrorCode::kNotFound, "no such operation");
      return errno_error("open the operation's cgroup", errno);
    }
    cgroup = sys::Fd(opened);
  }
  return std::unique_ptr<Operation>(
      std::make_unique<ContainerOperation>(std::move(payload), std::move(name), std::move(cgroup), record.before, past, scope_));
}

Result<std::unique_ptr<Operation>> ContainerInstance::open_operation(const std::string& op_id) {
  return operation({.id = op_id, .before = {}}, ContainerOperation::Past::kKnown);
}

std::unique_ptr<Operation> ContainerInstance::first_operation() {
  if (!std::exchange(first_operation_left_, false) || scope_->given_back.load()) return nullptr;
  auto payload = shared_->cgroups.open_payload(record_.slot);
  if (!payload.ok()) return nullptr;
  sys::Fd cgroup(::openat(payload->get(), sys::CgroupTree::kFirstOperation, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!cgroup) return nullptr;
  // What commands of earlier sandboxes used. Frozen time counts from a freeze on.
  const ContainerOperation::Before before = ContainerOperation::counted(cgroup.get(), true);
  return std::make_unique<ContainerOperation>(std::move(*payload), sys::CgroupTree::kFirstOperation, std::move(cgroup), before,
                                              ContainerOperation::Past::kKnown, scope_);
}

Result<std::unique_ptr<Operation>> ContainerInstance::find_operation(const std::string& text) {
  DSEC_ASSIGN(const OperationRecord record, decode_operation_record(text));
  scope_->ever_frozen.store(true);  // by whoever held the sandbox before
  return operation(record, ContainerOperation::Past::kUnknown);
}

Result<void> ContainerInstance::freeze(Deadline deadline) {
  DSEC_TRY(fail_point("container.freeze"));
  scope_->ever_frozen.store(true);
  DSEC_TRY(shared_->cgroups.freeze_payload(record_.slot, true));
  auto frozen = shared_->cgroups.wait_frozen(record_.slot, true, deadline);
  // Never half frozen: after an error the payload runs.
  if (!frozen.ok()) (void)shared_->cgroups.freeze_payload(record_.slot, false);
  return frozen;
}

Result<void> ContainerInstance::thaw(Deadline deadline) {
  DSEC_TRY(shared_->cgroups.allow_swap(record_.slot, false));
  DSEC_TRY(shared_->cgroups.freeze_payload(record_.slot, false));
  return shared_->cgroups.wait_frozen(record_.slot, false, deadline);
}

Result<Usage> ContainerInstance::usage() {
  if (scope_->given_back.load()) return Error(ErrorCode::kNotFound, "the sandbox is over");
  DSEC_ASSIGN(const sys::CgroupUsage measured, shared_->cgroups.usage(record_.slot));
  Usage out{measured.cpu_usec, measured.memory_bytes, measured.memory_peak_bytes, measured.processes,
            measured.oom_kills - std::min(measured.oom_kills, record_.oom_kills), measured.stalled_usec};
  oom_kills_.store(out.oom_kills);
  return out;
}

Result<EndEvidence> ContainerInstance::evidence() {
  EndEvidence out;
  out.ended = sys::process_ended(pidfd_.get());
  if (out.ended) out.wait_status = sys::exit_status(pidfd_.get());
  if (!scope_->given_back.load()) {
    if (const auto kills = shared_->cgroups.oom_kills(record_.slot); kills.ok())
      oom_kills_.store(*kills - std::min(*kills, record_.oom_kills));
  }
  out.oom_kills = oom_kills_.load();
  out.killed_by_platform = killed_.load();
  return out;
}

Result<void> ContainerInstance::destroy(Deadline deadline) {
  if (over_) return {};
  DSEC_TRY(fail_point("container.destroy"));
  if (!sys::process_ended(pidfd_.get())) {
    killed_.store(true);
    DSEC_TRY(sys::signal_process(pidfd_.get(), SIGKILL));
    const Deadline gentle = Deadline::at(std::min(deadline.when(), Deadline::in(kGentleKill).when()));
    if (!sys::wait_process(pidfd_.get(), gentle).ok()) {
      DSEC_TRY(shared_->cgroups.kill(record_.slot));
      DSEC_TRY(sys::wait_process(pidfd_.get(), deadline).within("PID 1 of the sandbox"));
    }
  }
  (void)evidence();  // the last look at its counters
  DSEC_TRY(fail_point("container.release"));
  if (::unlink((shared_->agent_dir + "/" + record_.socket_name).c_str()) < 0 && errno != ENOENT)
    return errno_error("remove the agent's socket", errno);
  {
    const std::lock_guard lock(scope_->mutex);
    scope_->given_back.store(true);
  }
  // The spawner knows whose the slot is by now, so it is asked before the cgroup is:
  // another sandbox's would not become empty.
  auto released = shared_->spawner.release({record_.slot, record_.generation}, deadline);
  if (released.ok() && !*released) {
    DSEC_TRY(shared_->cgroups.wait_empty(record_.slot, deadline));
    released = shared_->spawner.release({record_.slot, record_.generation}, deadline);
  }
  if (!released.ok()) return std::move(released).error();
  if (!*released) return Error(ErrorCode::kConflict, "a process is left in the sandbox");
  shared_->forget(record_);
  over_ = true;
  return {};
}

}  // namespace dsec::backend::container
