#include "spawner/server.h"

#include <poll.h>
#include <sched.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <thread>

#include "base/crc32c.h"
#include "base/log.h"
#include "protocol/spawner_messages.h"
#include "spawner/filter.h"
#include "spawner/launcher.h"
#include "spawner/slot_pool.h"
#include "sys/unix_socket.h"

namespace dsec::spawner {

namespace {

// Long enough for any client that lives; one that dies closes its connection.
constexpr auto kIdleConnection = std::chrono::hours(24 * 365);

class Server {
 public:
  Server(const ServerOptions& options, Node node, sys::CgroupTree cgroups)
      : node_(std::move(node)),
        cgroups_(std::move(cgroups)),
        broad_(broad_filter()),
        narrow_(narrow_filter()),
        pool_(node_, cgroups_, broad_, narrow_,
              {.ready = options.ready_slots,
               .first_number = crc32c(options.cgroup_name) % kMaxSlots,
               .reuse = options.reuse_slots}) {}

  ~Server() {
    for (Worker& worker : workers_) {
      if (worker.connection) ::shutdown(worker.connection.get(), SHUT_RDWR);
      if (worker.thread.joinable()) worker.thread.join();
    }
  }

  // On the accepting thread only.
  void take(sys::Fd connection) {
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      Worker& worker = workers_[i];
      if (worker.busy.load()) continue;
      if (worker.thread.joinable()) worker.thread.join();
      auto raised = raise_descriptor(std::move(connection));
      if (!raised.ok()) return log_error("a connection was dropped", {{"error", raised.error().message()}});
      worker.connection = std::move(*raised);
      worker.busy.store(true);
      worker.thread = std::thread([this, i] { work(static_cast<int>(i)); });
      return;
    }
    log_warning("a connection was refused: every worker is busy");
  }

 private:
  struct Worker {
    sys::Fd connection;
    std::atomic<bool> busy{false};
    std::thread thread;
  };

  void work(int index) {
    Worker& worker = workers_[static_cast<std::size_t>(index)];
    // Its own root and working directory: a launch enters the sandbox's mount namespace for a moment.
    if (::unshare(CLONE_FS) < 0) {
      log_error("a worker could not be set up", {{"error", errno_error("unshare", errno).message()}});
    } else if (auto loaded = load_filter(broad_); !loaded.ok()) {
      log_error("a worker could not be confined", {{"error", loaded.error().message()}});
    } else if (auto home = Home::open(node_); !home.ok()) {
      log_error("a worker could not be set up", {{"error", home.error().message()}});
    } else {
      Launcher launcher(node_, cgroups_, pool_, index, narrow_, std::move(*home));
      while (answer(worker.connection.get(), launcher)) {
      }
    }
    ::shutdown(worker.connection.get(), SHUT_RDWR);
    worker.busy.store(false);
  }

  // False when the connection is over.
  bool answer(int connection, Launcher& launcher) {
    auto message = sys::receive_message(connection, Deadline::in(kIdleConnection), protocol::kMaxSpawnerMessage);
    if (!message.ok()) return false;
    const auto kind = protocol::spawner_request_kind(message->bytes);
    if (!kind.ok()) {
      log_error("a request was refused", {{"error", kind.error().message()}});
      return false;
    }
    switch (*kind) {
      case protocol::SpawnerRequestKind::kLaunch: return launch(connection, launcher, *message);
      case protocol::SpawnerRequestKind::kRelease: {
        const auto request = protocol::decode_release_request(message->bytes);
        if (!request.ok()) return false;
        const auto released = pool_.release(request->slot, request->generation);
        return sys::send_message(connection, protocol::encode(protocol::ReleaseReply{released.ok() && *released})).ok();
      }
      case protocol::SpawnerRequestKind::kStatus: {
        const SlotPool::Counts counts = pool_.counts();
        return sys::send_message(connection, protocol::encode(protocol::StatusReply{
                                                 .pid = static_cast<std::uint32_t>(::getpid()),
                                                 .free_slots = static_cast<std::uint32_t>(counts.free),
                                                 .used_slots = counts.used,
                                                 .prepared = counts.prepared,
                                                 .recycled = counts.recycled})).ok();
      }
    }
    return false;
  }

  bool launch(int connection, Launcher& launcher, sys::SocketMessage& message) {
    const auto request = protocol::decode_launch_request(message.bytes);
    if (!request.ok()) return false;
    const bool directory = request->upper == protocol::UpperKind::kDirectory;
    if (message.fds.size() != 1 + request->layers + (directory ? 1 : 0)) return false;
    LaunchDescriptors descriptors;
    descriptors.listener = message.fds[0].get();
    for (std::uint32_t i = 0; i < request->layers; ++i) descriptors.layers.push_back(message.fds[1 + i].get());
    if (directory) descriptors.directory = message.fds.back().get();
    if (hung_up(connection)) return false;
    Launched launched = launcher.launch(*request, descriptors);
    std::vector<int> fds;
    if (launched.skeleton) fds.push_back(launched.skeleton.pidfd.get());
    const bool told = sys::send_message(connection, protocol::encode(launched.reply), fds).ok();
    // Who asked is gone: nobody would ever end it.
    if (!told && launched.skeleton) launcher.abandon(std::move(launched));
    return told;
  }

  static bool hung_up(int connection) {
    pollfd p{connection, 0, 0};
    return ::poll(&p, 1, 0) > 0;
  }

  const Node node_;
  const sys::CgroupTree cgroups_;
  const std::vector<sock_filter> broad_;
  const std::vector<sock_filter> narrow_;
  SlotPool pool_;
  std::array<Worker, kMaxWorkers> workers_;
};

}  // namespace

Result<void> serve(const ServerOptions& options, sys::Fd listener) {
  // Ignored, so that every child is reaped at its end: launches wait by vfork, and
  // the backend reads PID 1's status from its pidfd.
  ::signal(SIGCHLD, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t stop;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTERM);
  ::sigaddset(&stop, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  sys::CgroupHost host = sys::CgroupHost::detect();
  if (!options.use_v1) host = host.without_v1();
  DSEC_ASSIGN(sys::CgroupTree cgroups, sys::CgroupTree::create(host, options.cgroup_name));
  DSEC_TRY(cgroups.join_agents());
  DSEC_ASSIGN(Node node, set_up_node(options.agent_path, host));
  DSEC_ASSIGN(listener, raise_descriptor(std::move(listener)));
  DSEC_ASSIGN(const sys::Fd signals, raise_descriptor(sys::Fd(::signalfd(-1, &stop, SFD_CLOEXEC))));
  DSEC_TRY(reserve_low_descriptors(node));

  Server server(options, std::move(node), std::move(cgroups));
  log_info("spawner is ready", {{"agent", options.agent_path}});
  for (;;) {
    pollfd polled[2] = {{listener.get(), POLLIN, 0}, {signals.get(), POLLIN, 0}};
    if (::poll(polled, 2, -1) < 0 && errno != EINTR) return errno_error("poll", errno);
    if (polled[1].revents != 0) return {};
    if ((polled[0].revents & POLLIN) == 0) continue;
    if (auto connection = sys::accept_unix(listener.get()); connection.ok()) server.take(std::move(*connection));
  }
}

}  // namespace dsec::spawner
