#include "agent/aether.h"

#include "agent/activation.h"
#include "base/fail_point.h"
#include "protocol/agent_descriptors.h"

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace dsec::agent {
namespace {

using protocol::MessageType;

constexpr std::size_t kGuestLimit = 8;
constexpr std::chrono::seconds kGuestPatience{5};
constexpr std::chrono::seconds kTidyDelay{3};
constexpr std::size_t kSecretLimit = 64;
constexpr std::size_t kListBytes = 48 << 10;
constexpr std::uint64_t kFeatures = protocol::kFeatureTerminal | protocol::kFeatureSessions | protocol::kFeatureFiles |
                                    protocol::kFeatureArchives | protocol::kFeatureWatch;

// Takes as long for a wrong secret as for the right one.
bool same_secret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

rlimit raise_open_files() {
  rlimit before{.rlim_cur = 1024, .rlim_max = 1024};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit raised{.rlim_cur = before.rlim_max, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &raised);
  return before;
}

}  // namespace

Commands::Settings Aether::settings_of(const Options& options) {
  return {.standing = options.standing, .open_files = raise_open_files(), .plain = options.plain};
}

Aether::Aether(Options options)
    : options_(options),
      listener_(options.listener),
      commands_(loop_, settings_of(options),
                {.send = [this](MessageType type, std::string_view body) { if (edge_) edge_->send(type, body); },
                 .data_ready = [this] { if (edge_) edge_->data_ready(); }}),
      files_(loop_, options.standing,
             {.send = [this](MessageType type, std::string_view body) { if (edge_) edge_->send(type, body); },
              .data_ready = [this] { if (edge_) edge_->data_ready(); },
              .forget_secrets = [this] { ::explicit_bzero(secret_.data(), secret_.size()); }}) {}

int Aether::run() {
  if (!fail_point("agent.start").ok()) return 1;
  // The secret and the payload's data are nobody's to read. PID 1 of a container
  // has this from its file's mode already.
  ::prctl(PR_SET_DUMPABLE, 0);
  ::prctl(PR_SET_NAME, "aether");
  if (options_.plain) ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  watch_children();
  ::fcntl(listener_.get(), F_SETFD, FD_CLOEXEC);
  if (!options_.plain) {
    for (int fd = protocol::kAgentListenFd; fd < protocol::kFirstFreeAgentFd; fd++) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (!await_root(listener_.get())) return 1;
    commands_.root_is_there();
  }
  ::fcntl(listener_.get(), F_SETFL, ::fcntl(listener_.get(), F_GETFL) | O_NONBLOCK);
  if (!loop_.watch(listener_.get(), EPOLLIN, [this](std::uint32_t) { on_connect(); })) return 1;
  on_connect();  // the edge may have been there first
  loop_.run();
  return 0;
}

// All signals stay blocked for good: the payload may be allowed to send some.
void Aether::watch_children() {
  sigset_t all;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGCHLD);
  if (options_.plain) sigaddset(&wanted, SIGTERM), sigaddset(&wanted, SIGINT);
  child_signals_ = sys::Fd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  DSEC_CHECK(child_signals_.valid());
  loop_.watch(child_signals_.get(), EPOLLIN, [this](std::uint32_t) {
    signalfd_siginfo info{};
    while (::read(child_signals_.get(), &info, sizeof info) == sizeof info) {
      if (info.ssi_signo != SIGCHLD) return shut_down();
    }
    reap();
  });
}

void Aether::reap() {
  for (;;) {
    int status = 0;
    rusage usage{};
    const pid_t pid = ::wait4(-1, &status, WNOHANG, &usage);
    if (pid <= 0) return;
    commands_.on_child_exit(pid, status, usage);
  }
}

void Aether::on_connect() {
  sys::Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return;
  if (guests_.size() >= kGuestLimit) drop_guest(guests_.begin()->first);
  const std::uint64_t id = next_guest_++;
  Guest& guest = guests_[id];
  guest.connection = std::make_unique<Connection>(loop_, std::move(socket));
  const bool started = guest.connection->start({.frame = [this, id](const protocol::Frame& frame) { on_guest_frame(id, frame); },
                                                .next_data = [] { return std::string(); },
                                                .closed = [this, id] { loop_.later([this, id] { drop_guest(id); }); }});
  if (!started) return drop_guest(id);
  guest.patience = loop_.after(kGuestPatience, [this, id] { drop_guest(id); });
  guest.connection->read_now();  // most have said Hello by now
}

void Aether::drop_guest(std::uint64_t id) {
  const auto found = guests_.find(id);
  if (found == guests_.end()) return;
  loop_.cancel(found->second.patience);
  guests_.erase(found);
}

// A connection may be in one of its own events: it ends after them.
void Aether::bury(std::unique_ptr<Connection> connection) {
  loop_.later([dead = std::shared_ptr<Connection>(std::move(connection))] {});
}

void Aether::on_guest_frame(std::uint64_t id, const protocol::Frame& frame) {
  const auto found = guests_.find(id);
  if (found == guests_.end()) return;
  const auto refuse = [&](std::string why) {
    found->second.connection->send(MessageType::kProtocolError, protocol::encode(protocol::ProtocolError{.message = std::move(why)}));
    found->second.connection->close_after_sending();
    loop_.later([this, id] { drop_guest(id); });
  };
  if (frame.type != MessageType::kHello) return refuse("the first frame is Hello");
  const auto hello = protocol::decode<protocol::Hello>(frame.body);
  if (!hello.ok()) return refuse("Hello: " + hello.error().message());
  if (hello->version_max < protocol::kAgentProtocolMin || hello->version_min > protocol::kAgentProtocolMax) {
    return refuse("no version in common: this agent speaks " + std::to_string(protocol::kAgentProtocolMin) + " to " +
                  std::to_string(protocol::kAgentProtocolMax));
  }
  if (hello->secret.empty() || hello->secret.size() > kSecretLimit) return refuse("a secret has 1 to 64 bytes");
  if (paired_ && !same_secret(secret_, hello->secret)) return refuse("refused");
  if (paired_ && hello->epoch <= epoch_) return refuse("a newer edge has been here");

  loop_.cancel(found->second.patience);
  std::unique_ptr<Connection> connection = std::move(found->second.connection);
  guests_.erase(found);
  welcome(std::move(connection), *hello);
}

void Aether::welcome(std::unique_ptr<Connection> connection, const protocol::Hello& hello) {
  if (!paired_) {
    paired_ = true;
    secret_ = hello.secret;
    commands_.set_no_new_privs(hello.no_new_privs);
  }
  epoch_ = hello.epoch;
  if (!fail_point("agent.welcome").ok()) return shut_down();
  if (edge_) {
    edge_->close_after_sending();
    bury(std::move(edge_));
    files_.drop_all();
  }
  edge_ = std::move(connection);
  edge_->set_events({.frame = [this](const protocol::Frame& frame) { on_frame(frame); },
                     .next_data = [this] { return next_data(); },
                     .closed = [this] {
                       bury(std::move(edge_));
                       files_.drop_all();
                     }});
  send_hello_reply(std::min(hello.version_max, protocol::kAgentProtocolMax));
  commands_.repeat_all();
}

void Aether::send_hello_reply(std::uint32_t version) {
  protocol::HelloReply reply{.version = version, .features = kFeatures};
  std::size_t bytes = 0;
  const auto add = [&](std::size_t size) {
    bytes += size + 64;
    if (bytes < kListBytes) return;
    reply.more = true;
    edge_->send(MessageType::kHelloReply, protocol::encode(reply));
    reply = {.version = version, .features = kFeatures};
    bytes = size + 64;
  };
  for (auto& operation : commands_.operations()) {
    add(operation.op_id.size());
    reply.operations.push_back(std::move(operation));
  }
  for (auto& session : commands_.sessions()) {
    add(session.size());
    reply.sessions.push_back(std::move(session));
  }
  edge_->send(MessageType::kHelloReply, protocol::encode(reply));
}

// Commands and files take turns.
std::string Aether::next_data() {
  files_turn_ = !files_turn_;
  std::string frame = files_turn_ ? files_.next_data() : commands_.next_data();
  if (frame.empty()) frame = files_turn_ ? commands_.next_data() : files_.next_data();
  return frame;
}

void Aether::protocol_error(std::string message) {
  if (edge_) edge_->send(MessageType::kProtocolError, protocol::encode(protocol::ProtocolError{.message = std::move(message)}));
}

template <typename Message, typename Action>
void Aether::with(const protocol::Frame& frame, Action action) {
  auto message = protocol::decode<Message>(frame.body);
  if (!message.ok()) return protocol_error("frame of type " + std::to_string(static_cast<int>(frame.type)) + ": " + message.error().message());
  action(std::move(*message));
}

void Aether::on_frame(const protocol::Frame& frame) {
  // A sandbox is idle most of its life: what its work left of the heap goes back.
  if (tidy_ == 0) {
    tidy_ = loop_.after(kTidyDelay, [this] {
      tidy_ = 0;
      ::malloc_trim(0);
    });
  }
  switch (frame.type) {
    case MessageType::kPing:
      edge_->send(MessageType::kPong, frame.body);
      return;
    case MessageType::kExecStart:
      return with<protocol::ExecStart>(frame, [&](protocol::ExecStart m) {
        sys::Fd cgroup;
        if (m.with_cgroup) cgroup = edge_->take_descriptor();
        commands_.start(std::move(m), std::move(cgroup));
      });
    case MessageType::kStdin:
      return with<protocol::Stdin>(frame, [&](const protocol::Stdin& m) { commands_.write_input(m); });
    case MessageType::kSignal:
      return with<protocol::Signal>(frame, [&](const protocol::Signal& m) { commands_.signal(m); });
    case MessageType::kResize:
      return with<protocol::Resize>(frame, [&](const protocol::Resize& m) { commands_.resize(m); });
    case MessageType::kOutputAck:
      return with<protocol::OutputAck>(frame, [&](const protocol::OutputAck& m) { commands_.acknowledge(m); });
    case MessageType::kRelease:
      return with<protocol::Release>(frame, [&](const protocol::Release& m) { commands_.release(m.op_id); });
    case MessageType::kSessionClose:
      return with<protocol::SessionClose>(frame, [&](const protocol::SessionClose& m) { commands_.close_session(m.session); });
    case MessageType::kFileRequest:
      return with<protocol::FileRequest>(frame, [&](protocol::FileRequest m) { files_.request(std::move(m)); });
    case MessageType::kFileData:
      return with<protocol::FileData>(frame, [&](protocol::FileData m) { files_.take_data(std::move(m)); });
    case MessageType::kFileAck:
      return with<protocol::FileAck>(frame, [&](const protocol::FileAck& m) { files_.acknowledge(m); });
    case MessageType::kFileCancel:
      return with<protocol::FileCancel>(frame, [&](const protocol::FileCancel& m) { files_.cancel(m.request_id); });
    case MessageType::kShutdown:
      return shut_down();
    default:
      return protocol_error("no message of type " + std::to_string(static_cast<int>(frame.type)));
  }
}

// PID 1 takes its namespace with it.
void Aether::shut_down() {
  if (options_.plain) commands_.kill_all();
  loop_.stop();
}

}  // namespace dsec::agent
