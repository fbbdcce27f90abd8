#include "keeper/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <map>
#include <optional>
#include <vector>

#include "base/fail_point.h"
#include "base/log.h"
#include "keeper/supervised_program.h"
#include "protocol/keeper_messages.h"
#include "sys/cgroup.h"
#include "sys/file.h"
#include "sys/unix_socket.h"

namespace dsec::keeper {

namespace {

using protocol::KeeperReply;
using protocol::KeeperRequestKind;

constexpr std::size_t kMaxClients = 32;
constexpr auto kStopPatience = std::chrono::seconds(10);
// A client of ours sends whole messages and reads its replies; one that does not is dropped.
constexpr auto kClientPatience = std::chrono::seconds(2);

class Keeper {
 public:
  Keeper(const KeeperOptions& options, sys::CgroupTree cgroups, sys::Fd listener, sys::Fd spawner_listener, sys::Fd signals)
      : options_(options),
        cgroups_(std::move(cgroups)),
        listener_(std::move(listener)),
        spawner_listener_(std::move(spawner_listener)),
        signals_(std::move(signals)),
        spawner_("dsec-spawner", spawner_command(options), spawner_listener_.get()) {}

  // Returns when there is nothing to do any more.
  void run() {
    Instant idle_since = std::chrono::steady_clock::now();
    while (!stopping_) {
      spawner_.start_if_due();
      if (stored_) stored_->start_if_due();
      // What is kept is of use to sandboxes and to a server that lives.
      const bool idle = clients_.empty() && !cgroups_.any_in_use();
      const Instant now = std::chrono::steady_clock::now();
      if (!idle) idle_since = now;
      else if (now - idle_since >= options_.linger) break;
      wait(idle ? Deadline::at(idle_since + options_.linger).left_ms() + 1 : static_cast<int>(options_.linger.count()));
    }
    if (stored_) stored_->stop(Deadline::in(kStopPatience));
    spawner_.stop(Deadline::in(kStopPatience));
    if (end_sandboxes_) end_sandboxes();
  }

  // It was asked to; nobody needs what it had.
  bool ended_sandboxes() const { return end_sandboxes_; }

 private:
  static std::vector<std::string> spawner_command(const KeeperOptions& options) {
    std::vector<std::string> words = {options.helper_dir + "/dsec-spawner", "--agent", options.helper_dir + "/dsec-agent",
                                      "--cgroup", sys::cgroup_name(options.data_dir), "--keeper", std::to_string(::getpid())};
    if (!options.use_v1) words.emplace_back("--no-v1");
    if (!options.ready_slots.empty()) words.insert(words.end(), {"--ready", options.ready_slots});
    words.emplace_back("--socket-fd");
    return words;
  }
  static std::vector<std::string> stored_command(const KeeperOptions& options) {
    return {options.helper_dir + "/dsec-stored", "--data-dir", options.data_dir, "--keeper", std::to_string(::getpid()), "--channel-fd"};
  }

  // Its channel has come, gone or changed.
  void renew_stored() {
    if (stored_) stored_->stop(Deadline::in(kStopPatience));
    stored_.reset();
    if (const auto channel = kept_.find(std::string(protocol::kStoredChannel)); channel != kept_.end())
      stored_.emplace("dsec-stored", stored_command(options_), channel->second.get());
  }

  void wait(int timeout_ms) {
    if (const int due = spawner_.due_ms(); due >= 0) timeout_ms = std::min(timeout_ms, due + 1);
    if (const int due = stored_ ? stored_->due_ms() : -1; due >= 0) timeout_ms = std::min(timeout_ms, due + 1);
    std::vector<pollfd> polled = {
        {listener_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}, {spawner_.pidfd(), POLLIN, 0}, {stored_ ? stored_->pidfd() : -1, POLLIN, 0}};
    const std::size_t first_client = polled.size();
    for (const sys::Fd& client : clients_) polled.push_back({client.get(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), timeout_ms) <= 0) return;
    if (polled[1].revents != 0) stopping_ = true;
    if (polled[2].revents != 0) spawner_.ended();
    if (polled[3].revents != 0) stored_->ended();
    // From the back, so that an index stays that of its client.
    for (std::size_t i = clients_.size(); i-- > 0;)
      if (polled[first_client + i].revents != 0 && !answer(clients_[i].get())) clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(i));
    if (polled[0].revents != 0)
      if (auto client = sys::accept_unix(listener_.get()); client.ok() && clients_.size() < kMaxClients) {
        const timeval patience{kClientPatience.count(), 0};
        ::setsockopt(client->get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        clients_.push_back(std::move(*client));
      }
  }

  // False when the connection is to be closed.
  bool answer(int client) {
    auto message = sys::receive_message(client, Deadline::in(kClientPatience), protocol::kMaxKeeperMessage);
    if (!message.ok()) return false;
    const auto request = protocol::decode_keeper_request(message->bytes);
    if (!request.ok()) return false;
    KeeperReply reply;
    switch (request->kind) {
      case KeeperRequestKind::kPut:
        if (message->fds.size() != 1 || request->name.empty()) return false;
        if (kept_.size() >= protocol::kMaxKept && !kept_.contains(request->name)) {
          reply.error_number = ENOSPC;
          reply.message = "the keeper is full";
        } else if (request->name == protocol::kStoredChannel) {
          // A client that reconnects puts all that it has again: dsec-stored goes on.
          if (kept_.emplace(request->name, std::move(message->fds[0])).second) renew_stored();
        } else {
          kept_[request->name] = std::move(message->fds[0]);
        }
        break;
      case KeeperRequestKind::kGet: return get(client, request->name);
      case KeeperRequestKind::kDrop:
        kept_.erase(request->name);
        if (request->name == protocol::kStoredChannel) renew_stored();
        break;
      case KeeperRequestKind::kStatus:
        reply.kept = static_cast<std::uint32_t>(kept_.size());
        reply.pid = static_cast<std::uint32_t>(::getpid());
        reply.spawner_pid = static_cast<std::uint32_t>(spawner_.pid());
        reply.spawner_starts = spawner_.starts();
        break;
      case KeeperRequestKind::kStop:
        stopping_ = end_sandboxes_ = true;
        break;
    }
    return send(client, reply, {});
  }

  bool get(int client, const std::string& prefix) {
    KeeperReply reply;
    std::vector<int> fds;
    for (auto it = kept_.lower_bound(prefix); it != kept_.end() && it->first.starts_with(prefix); ++it) {
      if (fds.size() == protocol::kDescriptorsPerReply) {
        reply.more = true;
        if (!send(client, reply, fds)) return false;
        reply = {};
        fds.clear();
      }
      reply.names.push_back(it->first);
      fds.push_back(it->second.get());
    }
    return send(client, reply, fds);
  }

  static bool send(int client, const KeeperReply& reply, const std::vector<int>& fds) {
    return sys::send_message(client, protocol::encode(reply), fds).ok();
  }

  void end_sandboxes() {
    const auto slots = cgroups_.slots();
    if (!slots.ok()) return;
    const Deadline deadline = Deadline::in(kStopPatience);
    for (const std::string& slot : *slots) (void)cgroups_.kill(slot);
    for (const std::string& slot : *slots)
      if (auto empty = cgroups_.wait_empty(slot, deadline); !empty.ok())
        log_error("a sandbox could not be ended", {{"slot", slot}, {"error", empty.error().message()}});
  }

  const KeeperOptions options_;
  const sys::CgroupTree cgroups_;
  const sys::Fd listener_;
  const sys::Fd spawner_listener_;
  const sys::Fd signals_;
  SupervisedProgram spawner_;
  std::optional<SupervisedProgram> stored_;
  std::map<std::string, sys::Fd> kept_;
  std::vector<sys::Fd> clients_;
  bool stopping_ = false;
  bool end_sandboxes_ = false;
};

// An open-file-description lock, so that it goes with this process and is not
// inherited by the spawner's (close-on-exec) copy.
Result<sys::Fd> take_lock(const std::string& path) {
  DSEC_ASSIGN(sys::Fd fd, sys::open_at(AT_FDCWD, path, O_RDWR | O_CREAT, 0600));
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(fd.get(), F_OFD_SETLK, &whole) == 0) return fd;
  if (errno == EAGAIN || errno == EACCES) return Error(ErrorCode::kConflict, "this data directory has a keeper");
  return errno_error("lock " + path, errno);
}

// What is ours must be empty before it can be removed; this process was in it.
// A server that lives on has the tree, and its next keeper goes on with it.
Result<void> leave_cgroups(const sys::CgroupHost& host, const std::string& name, bool ended_all) {
  std::vector<std::string> roots = {host.unified};
  for (const auto& drive : host.controllers)
    if (drive.version == sys::CgroupHost::Version::kV1) roots.push_back(drive.v1_mount);
  for (const std::string& root : roots) DSEC_TRY(sys::write_at(AT_FDCWD, root + "/cgroup.procs", "0"));
  return ended_all ? sys::CgroupTree::remove(host, name) : sys::CgroupTree::remove_abandoned(host, name);
}

// What keepers have left whose data directories did not come back: nobody has it,
// and nothing runs in it.
void sweep_cgroups(const sys::CgroupHost& host) {
  for (const sys::AbandonedCgroups& tree : sys::CgroupTree::abandoned(host)) {
    if (tree.populated) {
      log_warning("sandboxes run that no server has", {{"cgroup", tree.name}});
    } else if (const auto removed = sys::CgroupTree::remove_abandoned(host, tree.name); removed.ok()) {
      log_info("the cgroups of a node that is gone were removed", {{"cgroup", tree.name}});
    } else {
      log_warning("the cgroups of a node that is gone stay", {{"cgroup", tree.name}, {"why", removed.error().message()}});
    }
  }
}

}  // namespace

Result<void> keep(const KeeperOptions& options, int ready_fd) {
  sys::Fd ready(ready_fd);
  const std::string run = options.data_dir + "/run";
  DSEC_TRY(sys::make_directories(run, 0700));
  DSEC_ASSIGN(const sys::Fd lock, take_lock(run + "/keeper.lock"));
  ::signal(SIGCHLD, SIG_IGN);  // orphans are reaped at once
  ::signal(SIGPIPE, SIG_IGN);
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) < 0) return errno_error("become a subreaper", errno);
  sigset_t stop;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTERM);
  ::sigaddset(&stop, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  sys::Fd signals(::signalfd(-1, &stop, SFD_CLOEXEC));
  if (!signals) return errno_error("signalfd", errno);

  sys::CgroupHost host = sys::CgroupHost::detect();
  if (!options.use_v1) host = host.without_v1();
  const std::string name = sys::cgroup_name(options.data_dir);
  DSEC_ASSIGN(sys::CgroupTree cgroups, sys::CgroupTree::create(host, name));
  DSEC_TRY(cgroups.join_agents());
  sweep_cgroups(sys::CgroupHost::detect());
  DSEC_ASSIGN(sys::Fd spawner_listener, sys::listen_unix(run + "/spawner.sock", SOCK_SEQPACKET));
  DSEC_ASSIGN(sys::Fd listener, sys::listen_unix(run + "/keeper.sock", SOCK_SEQPACKET));
  DSEC_TRY(fail_point("keeper.ready"));
  log_info("keeper is ready", {{"data", options.data_dir}});
  if (ready && ::write(ready.get(), "r", 1) < 0) log_warning("whoever started the keeper has gone");
  ready.reset();
  bool ended_all = false;
  {
    Keeper keeper(options, std::move(cgroups), std::move(listener), std::move(spawner_listener), std::move(signals));
    keeper.run();
    ended_all = keeper.ended_sandboxes();
  }
  // Before the lock goes: a keeper that comes now makes its own.
  ::unlink((run + "/keeper.sock").c_str());
  ::unlink((run + "/spawner.sock").c_str());
  if (auto left = leave_cgroups(host, name, ended_all); !left.ok())
    log_info("cgroups stay", {{"reason", left.error().message()}});
  return {};
}

}  // namespace dsec::keeper
