#include "backend/fake/plain_instance.h"

#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>

#include "sys/file.h"
#include "sys/unix_socket.h"

namespace dsec::backend::fake {

namespace {

constexpr char kVersion[] = "plain1";

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool readable(int fd, Deadline deadline) {
  pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&ready, 1, deadline.left_ms()) == 1;
}

class PlainOperation final : public Operation {
 public:
  PlainOperation(std::string id, pid_t agent, sys::Fd agent_pidfd)
      : id_(std::move(id)), agent_(agent), agent_pidfd_(std::move(agent_pidfd)) {}
  int cgroup_fd() const override { return -1; }
  Result<void> kill() override {
    if (!readable(agent_pidfd_.get(), Deadline::in({})))
      for (pid_t pid : descendants(agent_)) ::kill(pid, SIGKILL);
    return {};
  }
  bool populated() const override {
    return !readable(agent_pidfd_.get(), Deadline::in({})) && !descendants(agent_).empty();
  }
  std::uint64_t cpu_usec() const override { return 0; }
  std::uint64_t frozen_usec() const override { return 0; }
  std::string record() const override { return id_; }
  std::unique_ptr<Operation> renew() override { return nullptr; }

 private:
  const std::string id_;
  const pid_t agent_;
  const sys::Fd agent_pidfd_;
};

}  // namespace

std::string encode(const PlainRecord& record) {
  return std::string(kVersion) + " " + std::to_string(record.pid) + " " + std::to_string(record.identity) + " " + record.socket;
}

Result<PlainRecord> decode_plain_record(const std::string& text) {
  std::istringstream in(text);
  std::string version;
  PlainRecord record;
  if (!(in >> version >> record.pid >> record.identity >> record.socket) || version != kVersion || record.pid <= 1)
    return Error(ErrorCode::kDataFault, "not a record of a plain instance");
  return record;
}

Result<sys::Fd> open_process(pid_t pid) {
  sys::Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) return errno_error("open process " + std::to_string(pid), errno);
  return fd;
}

Result<std::uint64_t> identity_of(int pidfd) {
  struct stat info{};
  if (::fstat(pidfd, &info) != 0) return errno_error("stat a pidfd", errno);
  return static_cast<std::uint64_t>(info.st_ino);
}

std::vector<pid_t> descendants(pid_t pid) {
  std::vector<pid_t> found = {pid};
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::string path = "/proc/" + std::to_string(found[i]) + "/task/" + std::to_string(found[i]) + "/children";
    const auto text = sys::read_file(path);
    if (!text.ok()) continue;
    std::istringstream in(*text);
    for (pid_t child = 0; in >> child;) found.push_back(child);
  }
  found.erase(found.begin());
  return found;
}

bool PlainInstance::ended() const { return readable(pidfd_.get(), Deadline::in({})); }

Result<sys::Fd> PlainInstance::dial_agent(Deadline) {
  if (ended()) return Error(ErrorCode::kUnavailable, "the agent is gone");
  if (greeted_) return std::move(greeted_);
  return sys::connect_unix(record_.socket, SOCK_STREAM);
}

Result<sys::Fd> PlainInstance::dial_port(std::uint16_t port, Deadline) {
  sys::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return errno_error("socket", errno);
  const sockaddr_in address = loopback(port);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return Error(ErrorCode::kUnavailable, "nothing listens on port " + std::to_string(port), errno);
  return fd;
}

Result<std::vector<sys::Fd>> PlainInstance::listen_loopback(const std::vector<LoopbackListener>& listeners) {
  std::vector<sys::Fd> made;
  for (const LoopbackListener& listener : listeners) {
    const bool tcp = listener.kind == LoopbackKind::kTcp;
    sys::Fd fd(::socket(AF_INET, (tcp ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return errno_error("socket", errno);
    const sockaddr_in address = loopback(listener.port);
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      return errno_error("bind port " + std::to_string(listener.port), errno);
    if (tcp && ::listen(fd.get(), 64) != 0) return errno_error("listen", errno);
    made.push_back(std::move(fd));
  }
  return made;
}

Result<std::unique_ptr<Operation>> PlainInstance::open_operation(const std::string& op_id) {
  if (ended()) return Error(ErrorCode::kUnavailable, "the instance is over");
  DSEC_ASSIGN(sys::Fd pidfd, sys::duplicate(pidfd_.get()));
  return std::unique_ptr<Operation>(new PlainOperation(op_id, record_.pid, std::move(pidfd)));
}

Result<std::unique_ptr<Operation>> PlainInstance::find_operation(const std::string& record) { return open_operation(record); }

Result<void> PlainInstance::freeze(Deadline) {
  if (ended()) return Error(ErrorCode::kUnavailable, "the instance is over");
  for (pid_t pid : descendants(record_.pid)) ::kill(pid, SIGSTOP);
  return {};
}

Result<void> PlainInstance::thaw(Deadline) {
  if (ended()) return Error(ErrorCode::kUnavailable, "the instance is over");
  for (pid_t pid : descendants(record_.pid)) ::kill(pid, SIGCONT);
  return {};
}

// The host's own processes share their memory's limit: nobody counts theirs alone.
Result<Reclaimed> PlainInstance::reclaim(const std::atomic<bool>&, Deadline) {
  if (ended()) return Error(ErrorCode::kUnavailable, "the instance is over");
  return Reclaimed{};
}

Result<WrittenTree> PlainInstance::open_written(const WritableLayer&) {
  return Error(ErrorCode::kUnsupported, "a plain process writes into the host's files, not into a layer");
}

Result<Usage> PlainInstance::usage() {
  Usage usage;
  if (!ended()) usage.processes = descendants(record_.pid).size();
  return usage;
}

Result<EndEvidence> PlainInstance::evidence() {
  const std::lock_guard lock(mutex_);
  evidence_.killed_by_platform = destroyed_;
  if (evidence_.ended || !ended()) return evidence_;
  evidence_.ended = true;
  // Only a parent is told the status; an adopted instance has another.
  siginfo_t info{};
  if (::waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED | WNOHANG) == 0 && info.si_pid != 0)
    evidence_.wait_status = info.si_code == CLD_EXITED ? (info.si_status & 0xff) << 8 : info.si_status & 0x7f;
  return evidence_;
}

Result<void> PlainInstance::destroy(Deadline deadline) {
  destroyed_ = true;
  // The commands first: once their agent is gone they are nobody's children.
  for (pid_t pid : descendants(record_.pid)) ::kill(pid, SIGKILL);
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  if (!readable(pidfd_.get(), deadline)) return Error(ErrorCode::kDeadlineExceeded, "the agent does not end");
  ::unlink(record_.socket.c_str());
  DSEC_TRY(evidence());  // reaps, where this process is the parent
  return {};
}

}  // namespace dsec::backend::fake
