#include "backend/fake/plain_backend.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "backend/fake/plain_instance.h"
#include "backend/greeting.h"
#include "base/encoding.h"
#include "base/random.h"
#include "sys/file.h"
#include "sys/unix_socket.h"

namespace dsec::backend::fake {

namespace {

constexpr char kSuffix[] = ".plain";  // of a file that names an instance of ours, beside its socket

Result<pid_t> start_agent(const std::string& agent, int listener) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  if (posix_spawn_file_actions_init(&actions) != 0 || posix_spawnattr_init(&attributes) != 0)
    return Error(ErrorCode::kInternal, "out of memory");
  posix_spawn_file_actions_adddup2(&actions, listener, 3);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  std::string name = "aether", plain = "--plain", path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  char* argv[] = {name.data(), plain.data(), nullptr};
  char* env[] = {path.data(), nullptr};
  pid_t pid = 0;
  const int number = posix_spawn(&pid, agent.c_str(), &actions, &attributes, argv, env);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (number != 0) return errno_error("start " + agent, number);
  return pid;
}

}  // namespace

Result<std::unique_ptr<PlainBackend>> PlainBackend::create(Options options) {
  DSEC_TRY(sys::make_directories(options.directory, 0700));
  return std::unique_ptr<PlainBackend>(new PlainBackend(std::move(options)));
}

Capabilities PlainBackend::capabilities() const {
  Capabilities capabilities;
  capabilities.name = "plain";
  capabilities.available = ::access(options_.agent.c_str(), X_OK) == 0;
  if (!capabilities.available) capabilities.reason = options_.agent + " cannot be executed";
  capabilities.notes = {"no isolation", "no limits"};
  return capabilities;
}

Result<std::unique_ptr<Instance>> PlainBackend::launch(const LaunchSpec& spec, const Rootfs&, Deadline) {
  PlainRecord record;
  record.socket = options_.directory + "/" + to_hex(SystemRandom().bytes(8));
  DSEC_ASSIGN(sys::Fd listener, sys::listen_unix(record.socket, SOCK_STREAM));
  // dup2 onto itself would leave it close-on-exec.
  if (listener.get() == 3) {
    DSEC_ASSIGN(sys::Fd other, sys::duplicate(3));
    listener = std::move(other);
  }
  Result<sys::Fd> greeted = spec.greeting.empty() ? sys::Fd() : connect_and_greet(record.socket, spec.greeting);
  auto started = greeted.ok() ? start_agent(options_.agent, listener.get()) : Result<pid_t>(greeted.error());
  if (!started.ok()) {
    ::unlink(record.socket.c_str());
    return started.error();
  }
  record.pid = *started;
  DSEC_ASSIGN(sys::Fd pidfd, open_process(record.pid));
  DSEC_ASSIGN(record.identity, identity_of(pidfd.get()));
  DSEC_TRY(sys::replace_file(record.socket + kSuffix, encode(record), 0600));
  return std::unique_ptr<Instance>(new PlainInstance(std::move(record), std::move(pidfd), std::move(*greeted)));
}

Result<std::unique_ptr<Instance>> PlainBackend::adopt(const std::string& text) {
  DSEC_ASSIGN(PlainRecord record, decode_plain_record(text));
  auto pidfd = open_process(record.pid);
  if (!pidfd.ok()) return Error(ErrorCode::kNotFound, "the agent is not running any more");
  DSEC_ASSIGN(const std::uint64_t identity, identity_of(pidfd->get()));
  auto instance = std::make_unique<PlainInstance>(record, std::move(*pidfd));
  DSEC_ASSIGN(const EndEvidence evidence, instance->evidence());
  if (identity != record.identity || evidence.ended) return Error(ErrorCode::kNotFound, "the agent is not running any more");
  return std::unique_ptr<Instance>(std::move(instance));
}

Result<std::size_t> PlainBackend::sweep(const std::vector<std::string>& records) {
  const std::set<std::string> keep(records.begin(), records.end());
  DSEC_ASSIGN(const std::vector<std::string> names, sys::list_directory(options_.directory));
  std::size_t swept = 0;
  for (const std::string& name : names) {
    if (!name.ends_with(kSuffix)) continue;
    const std::string path = options_.directory + "/" + name;
    const auto text = sys::read_file(path);
    if (!text.ok() || keep.count(*text) != 0) continue;
    auto instance = adopt(*text);
    if (instance.ok()) {
      DSEC_TRY((*instance)->destroy(Deadline::in(std::chrono::seconds(5))));
      ++swept;
    }
    ::unlink(path.c_str());
  }
  return swept;
}

}  // namespace dsec::backend::fake
