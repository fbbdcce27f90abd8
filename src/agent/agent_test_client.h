// A blocking client of the agent's protocol, and the agent as a child process:
// for tests, here and elsewhere.
//
//   AgentProcess agent(path_of_dsec_agent);
//   AgentTestClient client(agent.socket_path());
//   client.hello("secret", 1);
//   auto result = client.run({.op_id = "1", .shell = "echo hi"});
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "protocol/frame.h"
#include "sys/fd.h"

namespace dsec::agent {

// dsec-agent --plain on a socket in a fresh directory; ended by the destructor.
class AgentProcess {
 public:
  explicit AgentProcess(const std::string& program, const std::vector<std::string>& arguments = {"--plain"}) {
    char directory[] = "/tmp/dsec-agent-test-XXXXXX";
    if (::mkdtemp(directory) == nullptr) std::abort();
    directory_ = directory;
    path_ = directory_ + "/agent.sock";
    const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    if (::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || ::listen(listener, 16) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::setpgid(0, 0);
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (listener == 3) {
        ::fcntl(3, F_SETFD, 0);
      } else {
        ::dup2(listener, 3);
      }
      std::vector<char*> argv = {const_cast<char*>(program.c_str())};
      for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
      argv.push_back(nullptr);
      ::execv(program.c_str(), argv.data());
      ::_exit(127);
    }
    ::close(listener);
  }
  ~AgentProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGTERM);
      ::waitpid(pid_, nullptr, 0);
    }
    ::unlink(path_.c_str());
    ::rmdir(directory_.c_str());
  }
  AgentProcess(const AgentProcess&) = delete;
  AgentProcess& operator=(const AgentProcess&) = delete;

  const std::string& socket_path() const { return path_; }
  pid_t pid() const { return pid_; }

 private:
  std::string directory_;
  std::string path_;
  pid_t pid_ = -1;
};

class AgentTestClient {
 public:
  using MessageType = protocol::MessageType;

  explicit AgentTestClient(const std::string& path) {
    socket_ = sys::Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
    if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) socket_.reset();
  }

  explicit AgentTestClient(sys::Fd connected) : socket_(std::move(connected)) {}

  bool connected() const { return socket_.valid(); }
  void disconnect() { socket_.reset(); }
  int fd() const { return socket_.get(); }

  void send_raw(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t put = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (put <= 0) return;
      bytes.remove_prefix(static_cast<std::size_t>(put));
    }
  }
  void send_body(MessageType type, std::string_view body) { send_raw(protocol::encode_frame(type, body)); }
  template <typename Message>
  void send(MessageType type, const Message& message) {
    send_body(type, protocol::encode(message));
  }

  // The next frame, nothing at the end of the stream or past the time.
  std::optional<protocol::Frame> next(Duration within = std::chrono::seconds(10)) {
    const Deadline deadline = Deadline::in(within);
    for (;;) {
      if (auto frame = reader_.next()) return frame;
      pollfd ready{.fd = socket_.get(), .events = POLLIN, .revents = 0};
      if (!socket_.valid() || ::poll(&ready, 1, deadline.left_ms()) <= 0) return std::nullopt;
      char bytes[64 << 10];
      const ssize_t got = ::recv(socket_.get(), bytes, sizeof bytes, 0);
      if (got <= 0) return std::nullopt;
      reader_.feed({bytes, static_cast<std::size_t>(got)});
    }
  }
  // Passes over frames of other types.
  template <typename Message>
  std::optional<Message> await(MessageType type, Duration within = std::chrono::seconds(10)) {
    const Deadline deadline = Deadline::in(within);
    while (auto frame = next(deadline.left())) {
      if (frame->type != type) continue;
      auto message = protocol::decode<Message>(frame->body);
      if (!message.ok()) return std::nullopt;
      return std::move(*message);
    }
    return std::nullopt;
  }

  // Nothing when the agent refused.
  std::optional<protocol::HelloReply> hello(const std::string& secret, std::uint64_t epoch, bool no_new_privs = false) {
    send(MessageType::kHello, protocol::Hello{.secret = secret, .epoch = epoch, .no_new_privs = no_new_privs});
    const auto frame = next();
    if (!frame || frame->type != MessageType::kHelloReply) return std::nullopt;
    return std::move(protocol::decode<protocol::HelloReply>(frame->body).value());
  }

  struct Outcome {
    bool answered = false;  // Exited or ExecFailed came in time
    std::optional<protocol::ExecFailed> failed;
    protocol::Exited exited;
    pid_t pid = 0;
    std::string out;
    std::string err;
    int code() const { return WIFEXITED(exited.wait_status) ? WEXITSTATUS(exited.wait_status) : -WTERMSIG(exited.wait_status); }
  };

  void start(const protocol::ExecStart& request) { send(MessageType::kExecStart, request); }

  // Reads and acknowledges until the command has ended. Other commands' frames are dropped.
  Outcome wait(const std::string& op_id, Duration within = std::chrono::seconds(20), bool release = true) {
    Outcome outcome;
    const Deadline deadline = Deadline::in(within);
    while (auto frame = next(deadline.left())) {
      if (frame->type == MessageType::kExecStarted) {
        auto m = protocol::decode<protocol::ExecStarted>(frame->body).value();
        if (m.op_id == op_id) outcome.pid = m.pid;
      } else if (frame->type == MessageType::kExecFailed) {
        auto m = protocol::decode<protocol::ExecFailed>(frame->body).value();
        if (m.op_id != op_id) continue;
        outcome.failed = m;
        outcome.answered = true;
        break;
      } else if (frame->type == MessageType::kOutput) {
        auto m = protocol::decode<protocol::Output>(frame->body).value();
        if (m.op_id != op_id) continue;
        take(outcome, m);
      } else if (frame->type == MessageType::kExited) {
        auto m = protocol::decode<protocol::Exited>(frame->body).value();
        if (m.op_id != op_id) continue;
        outcome.exited = m;
        outcome.answered = true;
        break;
      }
    }
    if (release && socket_.valid()) send(MessageType::kRelease, protocol::Release{.op_id = op_id});
    return outcome;
  }

  Outcome run(const protocol::ExecStart& request, Duration within = std::chrono::seconds(20)) {
    start(request);
    return wait(request.op_id, within);
  }
  // A shell command under an id of its own.
  Outcome shell(const std::string& command, const std::string& session = "") {
    return run({.op_id = "auto-" + std::to_string(++count_), .shell = command, .session = session});
  }

  void take(Outcome& outcome, const protocol::Output& m) {
    std::string& text = m.stream == protocol::OutputStream::kStdout ? outcome.out : outcome.err;
    if (m.offset <= text.size() && m.offset + m.bytes.size() > text.size()) text.append(m.bytes.substr(text.size() - m.offset));
    send(MessageType::kOutputAck, protocol::OutputAck{.op_id = m.op_id, .stream = m.stream, .offset = m.offset + m.bytes.size()});
  }

 private:
  sys::Fd socket_;
  protocol::FrameReader reader_;
  std::uint64_t count_ = 0;
};

}  // namespace dsec::agent
