#include "backend/keeper_client.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>

#include "sys/file.h"
#include "sys/unix_socket.h"

extern char** environ;

namespace dsec::backend {
namespace {

constexpr auto kPatience = std::chrono::seconds(10);

Result<void> run_to_end(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  if (const int error = ::posix_spawn(&pid, program.c_str(), nullptr, nullptr, argv.data(), environ); error != 0)
    return errno_error("start " + program, error);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return errno_error("wait for " + program, errno);
  if (status != 0) return Error(ErrorCode::kUnavailable, program + " did not start");
  return {};
}

}  // namespace

Result<std::unique_ptr<KeeperClient>> KeeperClient::start_or_find(Options options) {
  auto client = std::unique_ptr<KeeperClient>(new KeeperClient(std::move(options)));
  const std::lock_guard lock(client->mutex_);
  DSEC_TRY(client->connect());
  return client;
}

Result<void> KeeperClient::connect() {
  const std::string path = options_.run_directory + "/keeper.sock";
  if (Result<sys::Fd> found = sys::connect_unix(path, SOCK_SEQPACKET); found.ok()) {
    socket_ = std::move(found).value();
    return {};
  }
  DSEC_TRY(run_to_end(options_.program, {"--run-dir", options_.run_directory}));
  DSEC_ASSIGN(socket_, sys::connect_unix(path, SOCK_SEQPACKET));
  return {};
}

Result<void> KeeperClient::restore() {
  DSEC_TRY(connect().within("find the keeper again"));
  for (const auto& [name, fd] : put_)
    DSEC_TRY(call_once({.verb = protocol::KeeperVerb::kPut, .name = name}, fd.get()));
  for (const auto& [name, arguments] : programs_)
    DSEC_TRY(call_once({.verb = protocol::KeeperVerb::kStart, .name = name, .arguments = arguments}, -1));
  return {};
}

Result<KeeperClient::Answer> KeeperClient::call_once(const protocol::KeeperRequest& request, int fd) {
  if (!socket_) return Error(ErrorCode::kUnavailable, "no connection to the keeper");
  std::vector<int> fds;
  if (fd >= 0) fds.push_back(fd);
  DSEC_TRY(sys::send_message(socket_.get(), protocol::encode(request), fds));
  Answer answer;
  for (bool more = true; more;) {
    DSEC_ASSIGN(sys::SocketMessage message, sys::receive_message(socket_.get(), Deadline::in(kPatience)));
    DSEC_ASSIGN(protocol::KeeperReply reply, protocol::decode_keeper_reply(message.bytes));
    if (reply.error_number != 0) return errno_error("keeper: " + reply.message, reply.error_number);
    if (reply.names.size() != message.fds.size()) return Error(ErrorCode::kInternal, "the keeper lost descriptors");
    for (std::size_t i = 0; i < reply.names.size(); i++)
      answer.descriptors.push_back({reply.names[i], std::move(message.fds[i])});
    more = reply.more;
    answer.replies.push_back(std::move(reply));
  }
  return answer;
}

// Every verb can be repeated, so a connection that broke is made anew and the
// request sent once more.
Result<KeeperClient::Answer> KeeperClient::call(const protocol::KeeperRequest& request, int fd) {
  Result<Answer> first = call_once(request, fd);
  if (first.ok() || first.error().code() != ErrorCode::kUnavailable) return first;
  socket_.reset();
  DSEC_TRY(restore());
  return call_once(request, fd);
}

Result<void> KeeperClient::put(const std::string& name, int fd) {
  const std::lock_guard lock(mutex_);
  DSEC_TRY(call({.verb = protocol::KeeperVerb::kPut, .name = name}, fd));
  DSEC_ASSIGN(put_[name], sys::duplicate(fd));
  return {};
}

Result<std::vector<sys::KeptDescriptor>> KeeperClient::get(const std::string& prefix) {
  const std::lock_guard lock(mutex_);
  DSEC_ASSIGN(Answer answer, call({.verb = protocol::KeeperVerb::kGet, .name = prefix}, -1));
  return std::move(answer.descriptors);
}

Result<void> KeeperClient::drop(const std::string& name) {
  const std::lock_guard lock(mutex_);
  put_.erase(name);
  DSEC_TRY(call({.verb = protocol::KeeperVerb::kDrop, .name = name}, -1));
  return {};
}

Result<void> KeeperClient::start_program(const std::string& name, const std::vector<std::string>& arguments) {
  const std::lock_guard lock(mutex_);
  DSEC_TRY(call({.verb = protocol::KeeperVerb::kStart, .name = name, .arguments = arguments}, -1));
  programs_[name] = arguments;
  return {};
}

Result<KeeperClient::Status> KeeperClient::status() {
  const std::lock_guard lock(mutex_);
  DSEC_ASSIGN(const Answer answer, call({.verb = protocol::KeeperVerb::kStatus}, -1));
  const protocol::KeeperReply& reply = answer.replies.back();
  return Status{static_cast<int>(reply.pid), reply.descriptors, reply.restarts};
}

Result<void> KeeperClient::stop() {
  const std::lock_guard lock(mutex_);
  put_.clear();
  programs_.clear();
  DSEC_TRY(call_once({.verb = protocol::KeeperVerb::kStop}, -1));
  socket_.reset();
  return {};
}

}  // namespace dsec::backend
