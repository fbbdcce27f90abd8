#include "backend/keeper_client.h"

#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "sys/process.h"
#include "sys/unix_socket.h"

extern char** environ;

namespace dsec::backend {

namespace {
constexpr auto kCallPatience = std::chrono::seconds(5);
}

Result<void> KeeperClient::connect() {
  if (connection_) {
    pollfd closed{connection_.get(), POLLIN, 0};
    if (::poll(&closed, 1, 0) == 0) return {};
    connection_.reset();
  }
  DSEC_ASSIGN(connection_, sys::connect_unix(path_, SOCK_SEQPACKET));
  return {};
}

Result<protocol::KeeperReply> KeeperClient::call(const protocol::KeeperRequest& request, const std::vector<int>& fds,
                                                 std::vector<sys::KeptDescriptor>* kept) {
  const std::lock_guard lock(mutex_);
  DSEC_TRY(connect().within("keeper"));
  const Deadline deadline = Deadline::in(kCallPatience);
  auto exchange = [&]() -> Result<protocol::KeeperReply> {
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
  };
  auto reply = exchange();
  // A half-read answer must not be taken for the next one.
  if (!reply.ok()) connection_.reset();
  return std::move(reply).within("keeper");
}

Result<void> KeeperClient::put(const std::string& name, int fd) {
  if (name.empty() || name.size() > protocol::kMaxKeptName) return invalid_argument("a kept name has 1 to 200 bytes");
  DSEC_TRY(call({protocol::KeeperRequestKind::kPut, name}, {fd}, nullptr));
  return {};
}

Result<std::vector<sys::KeptDescriptor>> KeeperClient::get(const std::string& prefix) {
  std::vector<sys::KeptDescriptor> out;
  DSEC_TRY(call({protocol::KeeperRequestKind::kGet, prefix}, {}, &out));
  return out;
}

Result<void> KeeperClient::drop(const std::string& name) {
  DSEC_TRY(call({protocol::KeeperRequestKind::kDrop, name}, {}, nullptr));
  return {};
}

Result<protocol::KeeperReply> KeeperClient::status() { return call({protocol::KeeperRequestKind::kStatus, ""}, {}, nullptr); }

Result<void> KeeperClient::stop(Deadline deadline) {
  DSEC_ASSIGN(const protocol::KeeperReply before, status());
  DSEC_ASSIGN(const sys::Fd pidfd, sys::open_pidfd(static_cast<pid_t>(before.pid)));
  DSEC_TRY(call({protocol::KeeperRequestKind::kStop, ""}, {}, nullptr));
  return sys::wait_process(pidfd.get(), deadline).within("keeper");
}

Result<std::unique_ptr<KeeperClient>> start_or_find_keeper(const KeeperStart& start, Deadline deadline) {
  auto client = std::make_unique<KeeperClient>(start.data_dir + "/run/keeper.sock");
  if (client->status().ok()) return client;
  std::vector<std::string> words = {start.helper_dir + "/dsec-keeper", "--detach", "--data-dir", start.data_dir, "--helper-dir", start.helper_dir};
  if (!start.use_v1) words.emplace_back("--no-v1");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  // A keeper that is just ending holds the lock a moment longer: the one started
  // then fails, and the next try finds the way free.
  for (;;) {
    pid_t pid = 0;
    if (const int error = ::posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ)) return errno_error("start " + words[0], error);
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0)
      if (errno != EINTR) return errno_error("wait for dsec-keeper", errno);
    auto found = client->status();
    if (found.ok()) return client;
    if (deadline.passed()) return std::move(found).error();
  }
}

}  // namespace dsec::backend
