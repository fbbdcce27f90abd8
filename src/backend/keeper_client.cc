#include "backend/keeper_client.h"

#include <poll.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "sys/file.h"
#include "sys/process.h"
#include "sys/unix_socket.h"

extern char** environ;

namespace dsec::backend {

namespace {

constexpr auto kCallPatience = std::chrono::seconds(5);
constexpr auto kStartPatience = std::chrono::seconds(20);
constexpr auto kFirstPause = std::chrono::milliseconds(20);
constexpr auto kLongestPause = std::chrono::milliseconds(2000);

// An error that the keeper answered; any other means that it is not known what it did.
bool answered(const Result<protocol::KeeperReply>& reply) { return reply.ok() || reply.error().code() == ErrorCode::kExhausted; }

}  // namespace

KeeperClient::KeeperClient(KeeperStart start) : start_(std::move(start)), path_(start_.data_dir + "/run/keeper.sock") {}

KeeperClient::~KeeperClient() {
  if (stop_event_) ::eventfd_write(stop_event_.get(), 1);
  if (watcher_.joinable()) watcher_.join();
}

Result<void> KeeperClient::connect(Deadline deadline) {
  if (connection_) {
    pollfd closed{connection_.get(), POLLIN, 0};
    if (::poll(&closed, 1, 0) == 0) return {};
    connection_.reset();
  }
  auto made = sys::connect_unix(path_, SOCK_SEQPACKET);
  if (!made.ok() && revive_) {
    DSEC_TRY(start_keeper(deadline));
    made = sys::connect_unix(path_, SOCK_SEQPACKET);
  }
  if (!made.ok()) return std::move(made).error();
  connection_ = std::move(*made);
  // It may be another keeper than before, which has nothing yet. To put twice is to put once.
  for (const auto& [name, fd] : held_) {
    auto put = exchange({protocol::KeeperRequestKind::kPut, name}, {fd.get()}, nullptr);
    if (put.ok()) continue;
    connection_.reset();
    return std::move(put).within("hand " + name + " to the keeper again").error();
  }
  return {};
}

Result<protocol::KeeperReply> KeeperClient::exchange(const protocol::KeeperRequest& request, const std::vector<int>& fds,
                                                     std::vector<sys::KeptDescriptor>* kept) {
  const Deadline deadline = Deadline::in(kCallPatience);
  DSEC_TRY(sys::send_message(connection_.get(), protocol::encode(request), fds));
  for (;;) {
    DSEC_ASSIGN(sys::SocketMessage message, sys::receive_message(connection_.get(), deadline, protocol::kMaxKeeperMessage));
    DSEC_ASSIGN(protocol::KeeperReply reply, protocol::decode_keeper_reply(message.bytes));
    if (reply.error_number != 0) return Error(ErrorCode::kExhausted, reply.message, reply.error_number);
    if (kept) {
      if (reply.names.size() != message.fds.size()) return Error(ErrorCode::kInternal, "a reply lacks descriptors");
      for (std::size_t i = 0; i < reply.names.size(); ++i) kept->push_back({std::move(reply.names[i]), std::move(message.fds[i])});
    }
    if (!reply.more) return reply;
  }
}

Result<protocol::KeeperReply> KeeperClient::call(const protocol::KeeperRequest& request, const std::vector<int>& fds,
                                                 std::vector<sys::KeptDescriptor>* kept) {
  const bool again = revive_ && request.kind != protocol::KeeperRequestKind::kStop;
  for (int tries = 0;; ++tries) {
    if (kept) kept->clear();
    const Result<void> connected = connect(Deadline::in(kStartPatience));
    Result<protocol::KeeperReply> reply = connected.ok() ? exchange(request, fds, kept) : Result<protocol::KeeperReply>(connected.error());
    if (answered(reply)) return std::move(reply).within("keeper");
    // A half-read answer must not be taken for the next one.
    connection_.reset();
    if (!again || tries == 2) return std::move(reply).within("keeper");
  }
}

Result<void> KeeperClient::put(const std::string& name, int fd) {
  if (name.empty() || name.size() > protocol::kMaxKeptName) return invalid_argument("a kept name has 1 to 200 bytes");
  DSEC_ASSIGN(sys::Fd copy, sys::duplicate(fd));
  const std::lock_guard lock(mutex_);
  DSEC_TRY(call({protocol::KeeperRequestKind::kPut, name}, {fd}, nullptr));
  held_.insert_or_assign(name, std::move(copy));
  return {};
}

Result<std::vector<sys::KeptDescriptor>> KeeperClient::get(const std::string& prefix) {
  std::vector<sys::KeptDescriptor> out;
  const std::lock_guard lock(mutex_);
  DSEC_TRY(call({protocol::KeeperRequestKind::kGet, prefix}, {}, &out));
  for (const sys::KeptDescriptor& kept : out) {
    DSEC_ASSIGN(sys::Fd copy, sys::duplicate(kept.fd.get()));
    held_.insert_or_assign(kept.name, std::move(copy));
  }
  return out;
}

Result<void> KeeperClient::drop(const std::string& name) {
  const std::lock_guard lock(mutex_);
  held_.erase(name);
  DSEC_TRY(call({protocol::KeeperRequestKind::kDrop, name}, {}, nullptr));
  return {};
}

Result<protocol::KeeperReply> KeeperClient::status() {
  const std::lock_guard lock(mutex_);
  return call({protocol::KeeperRequestKind::kStatus, ""}, {}, nullptr);
}

Result<void> KeeperClient::stop(Deadline deadline) {
  if (stop_event_) ::eventfd_write(stop_event_.get(), 1);
  const std::lock_guard lock(mutex_);
  DSEC_ASSIGN(const protocol::KeeperReply before, call({protocol::KeeperRequestKind::kStatus, ""}, {}, nullptr));
  revive_ = false;
  held_.clear();
  DSEC_ASSIGN(const sys::Fd pidfd, sys::open_pidfd(static_cast<pid_t>(before.pid)));
  DSEC_TRY(call({protocol::KeeperRequestKind::kStop, ""}, {}, nullptr));
  return sys::wait_process(pidfd.get(), deadline).within("keeper");
}

Result<void> KeeperClient::start_keeper(Deadline deadline) {
  std::vector<std::string> words = {start_.helper_dir + "/dsec-keeper", "--detach", "--data-dir", start_.data_dir,
                                    "--helper-dir", start_.helper_dir};
  if (!start_.use_v1) words.emplace_back("--no-v1");
  if (!start_.ready_slots.empty()) words.insert(words.end(), {"--ready", start_.ready_slots});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  // A keeper that is just ending holds the lock a moment longer: the one started
  // then fails, and the next try finds the way free.
  for (Duration pause = kFirstPause;; pause = std::min<Duration>(pause * 2, kLongestPause)) {
    pid_t pid = 0;
    if (const int error = ::posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ)) return errno_error("start " + words[0], error);
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0)
      if (errno != EINTR) return errno_error("wait for dsec-keeper", errno);
    const auto reached = sys::connect_unix(path_, SOCK_SEQPACKET);
    if (reached.ok()) return {};
    if (deadline.passed()) return reached.error();
    pollfd stop{stop_event_.get(), POLLIN, 0};
    const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(pause).count();
    if (::poll(&stop, 1, static_cast<int>(std::min<long>(wait, deadline.left_ms()))) > 0) return reached.error();
  }
}

Result<void> KeeperClient::find_or_start(Deadline deadline) {
  const std::lock_guard lock(mutex_);
  if (call({protocol::KeeperRequestKind::kStatus, ""}, {}, nullptr).ok()) return {};
  DSEC_TRY(start_keeper(deadline));
  DSEC_TRY(call({protocol::KeeperRequestKind::kStatus, ""}, {}, nullptr));
  return {};
}

Result<void> KeeperClient::watch() {
  stop_event_ = sys::Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop_event_) return errno_error("make an event", errno);
  revive_ = true;
  watcher_ = std::thread([this] { run_watch(); });
  return {};
}

bool KeeperClient::stopping() const {
  pollfd stop{stop_event_.get(), POLLIN, 0};
  return ::poll(&stop, 1, 0) > 0;
}

// On a connection of its own, on which the keeper says nothing: readable is its end.
void KeeperClient::run_watch() {
  Duration pause = kFirstPause;
  while (!stopping()) {
    const auto watched = sys::connect_unix(path_, SOCK_SEQPACKET);
    if (watched.ok()) {
      pollfd polled[2] = {{stop_event_.get(), POLLIN, 0}, {watched->get(), POLLIN, 0}};
      while (::poll(polled, 2, -1) < 0 && errno == EINTR) {
      }
      if (stopping()) return;
      log_warning("the keeper has died; another is started");
    }
    const auto revived = status();
    if (revived.ok()) log_info("a keeper is there again", {{"pid", std::to_string(revived->pid)}});
    else if (!stopping()) log_error("no keeper could be started", {{"why", revived.error().message()}});
    pause = revived.ok() ? kFirstPause : std::min<Duration>(pause * 2, kLongestPause);
    pollfd stop{stop_event_.get(), POLLIN, 0};
    (void)::poll(&stop, 1, static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(pause).count()));
  }
}

Result<std::unique_ptr<KeeperClient>> start_or_find_keeper(const KeeperStart& start, Deadline deadline) {
  auto client = std::make_unique<KeeperClient>(start);
  DSEC_TRY(client->find_or_start(deadline));
  DSEC_TRY(client->watch());
  return client;
}

}  // namespace dsec::backend
