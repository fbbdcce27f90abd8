#include "keeper/keeper.h"

#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "sys/file.h"
#include "sys/unix_socket.h"

namespace dsec::keeper {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(50);
constexpr Duration kLongestPause = std::chrono::seconds(5);
// A program that ran this long before it ended is started again at once.
constexpr Duration kSettled = std::chrono::seconds(10);
constexpr std::size_t kMaxClients = 64;

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, number);
  return set;
}

std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> out;
  const std::string directory = "/proc/" + std::to_string(pid) + "/task";
  // The spawner has a thread for each connection, and a child belongs to the thread that made it.
  const Result<std::vector<std::string>> threads = sys::list_directory(directory);
  if (!threads.ok()) return out;
  for (const std::string& thread : *threads) {
    const Result<std::string> text = sys::read_file(directory + "/" + thread + "/children", 16 << 20);
    if (!text.ok()) continue;
    pid_t value = 0;
    for (const char c : *text) {
      if (c >= '0' && c <= '9') {
        value = value * 10 + (c - '0');
      } else if (value != 0) {
        out.push_back(value);
        value = 0;
      }
    }
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<Keeper>> Keeper::open(const std::string& directory) {
  auto keeper = std::unique_ptr<Keeper>(new Keeper(directory));
  DSEC_TRY(sys::make_directories(directory, 0700));
  DSEC_ASSIGN(keeper->lock_, sys::open_at(AT_FDCWD, directory + "/keeper.lock", O_RDWR | O_CREAT, 0600));
  if (::flock(keeper->lock_.get(), LOCK_EX | LOCK_NB) != 0) return Error(ErrorCode::kConflict, "another keeper runs here");
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return errno_error("become the child subreaper", errno);
  const sigset_t set = handled_signals();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  keeper->signals_ = sys::Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  keeper->epoll_ = sys::Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!keeper->signals_ || !keeper->epoll_) return errno_error("set up the loop", errno);
  DSEC_ASSIGN(keeper->listener_, sys::listen_unix(directory + "/keeper.sock", SOCK_SEQPACKET));
  DSEC_TRY(keeper->watch(keeper->signals_.get()));
  DSEC_TRY(keeper->watch(keeper->listener_.get()));
  keeper->last_client_ = std::chrono::steady_clock::now();
  return keeper;
}

Keeper::~Keeper() { stop_programs(); }

Result<void> Keeper::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return errno_error("watch a descriptor", errno);
  return {};
}

Result<void> Keeper::run() {
  while (!stopping_) {
    // The nearest thing that has a time: a program to start again, or the idle check.
    Instant wake = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    for (const auto& [name, program] : programs_)
      if (program.pid == 0) wake = std::min(wake, program.start_again);
    epoll_event events[16];
    const int n = ::epoll_wait(epoll_.get(), events, 16, Deadline::at(wake).left_ms());
    if (n < 0 && errno != EINTR) return errno_error("wait for events", errno);
    for (int i = 0; i < n && !stopping_; i++) {
      const int fd = events[i].data.fd;
      if (fd == listener_.get()) {
        accept_client();
      } else if (fd == signals_.get()) {
        signalfd_siginfo info;
        while (::read(signals_.get(), &info, sizeof info) == sizeof info)
          if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT) stopping_ = true;
        reap();
      } else {
        serve(fd);
      }
    }
    run_timers();
  }
  ::unlink((directory_ + "/keeper.sock").c_str());
  stop_programs();
  return {};
}

void Keeper::accept_client() {
  Result<sys::Fd> client = sys::accept_unix(listener_.get());
  if (!client.ok() || clients_.size() >= kMaxClients) return;
  const int fd = client->get();
  // A client that does not read its reply must not stop the loop.
  const timeval patience{2, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  if (watch(fd).ok()) clients_[fd] = std::move(client).value();
}

void Keeper::serve(int client) {
  last_client_ = std::chrono::steady_clock::now();
  Result<sys::SocketMessage> message =
      sys::receive_message(client, Deadline::in(Duration::zero()), protocol::kMaxKeeperMessage);
  if (!message.ok()) {
    if (message.error().code() != ErrorCode::kDeadlineExceeded) clients_.erase(client);
    return;
  }
  const Result<protocol::KeeperRequest> request = protocol::decode_keeper_request(message->bytes);
  if (request.ok()) return answer(client, *request, std::move(message->fds));
  const protocol::KeeperReply refusal{.error_number = EPROTO, .message = request.error().message()};
  if (!sys::send_message(client, protocol::encode(refusal)).ok()) clients_.erase(client);
}

void Keeper::answer(int client, const protocol::KeeperRequest& request, std::vector<sys::Fd> fds) {
  protocol::KeeperReply reply;
  const auto refuse = [&reply](int error, const char* why) {
    reply.error_number = error;
    reply.message = why;
  };
  switch (request.verb) {
    case protocol::KeeperVerb::kPut:
      if (fds.size() != 1 || request.name.empty()) {
        refuse(EINVAL, "put takes a name and one descriptor");
      } else {
        kept_[request.name] = std::move(fds[0]);
      }
      break;
    case protocol::KeeperVerb::kGet:
      return answer_get(client, request.name);
    case protocol::KeeperVerb::kDrop:
      kept_.erase(request.name);
      break;
    case protocol::KeeperVerb::kStart:
      if (request.arguments.empty() || request.name.empty()) {
        refuse(EINVAL, "start takes a name and arguments");
      } else {
        Program& program = programs_[request.name];
        program.arguments = request.arguments;
        if (program.pid == 0) start(program);
        reply.pid = static_cast<std::uint32_t>(program.pid);
      }
      break;
    case protocol::KeeperVerb::kStatus:
      reply.pid = static_cast<std::uint32_t>(::getpid());
      reply.descriptors = static_cast<std::uint32_t>(kept_.size());
      reply.restarts = restarts_;
      break;
    case protocol::KeeperVerb::kStop:
      stopping_ = true;
      stop_programs();
      break;
    default:
      refuse(EPROTO, "an unknown verb");
  }
  if (!sys::send_message(client, protocol::encode(reply)).ok()) clients_.erase(client);
}

void Keeper::answer_get(int client, const std::string& prefix) {
  auto at = kept_.lower_bound(prefix);
  for (bool more = true; more;) {
    protocol::KeeperReply reply;
    std::vector<int> fds;
    while (at != kept_.end() && at->first.starts_with(prefix) && fds.size() < protocol::kKeeperBatch) {
      reply.names.push_back(at->first);
      fds.push_back(at->second.get());
      ++at;
    }
    more = at != kept_.end() && at->first.starts_with(prefix);
    reply.more = more;
    if (!sys::send_message(client, protocol::encode(reply), fds).ok()) {
      clients_.erase(client);
      return;
    }
  }
}

void Keeper::start(Program& program) {
  std::vector<char*> argv;
  for (std::string& argument : program.arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  // The keeper is small and has one thread: a plain fork is cheap and safe here.
  const pid_t pid = ::fork();
  if (pid == 0) {
    // Its state is ours to restart: it must not outlive us and meet its successor.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::signal(SIGPIPE, SIG_DFL);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  program.started = std::chrono::steady_clock::now();
  program.pid = pid > 0 ? pid : 0;
  if (pid < 0) program.start_again = program.started + kFirstPause;
}

void Keeper::reap() {
  const Instant now = std::chrono::steady_clock::now();
  for (;;) {
    const pid_t pid = ::waitpid(-1, nullptr, WNOHANG);
    if (pid <= 0) return;
    for (auto& [name, program] : programs_) {
      if (program.pid != pid) continue;
      program.pid = 0;
      restarts_++;
      if (now - program.started >= kSettled) {
        program.pause = Duration::zero();
      } else {
        program.pause = std::clamp(program.pause * 2, kFirstPause, kLongestPause);
      }
      program.start_again = now + program.pause;
    }
  }
}

void Keeper::run_timers() {
  const Instant now = std::chrono::steady_clock::now();
  for (auto& [name, program] : programs_)
    if (program.pid == 0 && !stopping_ && program.start_again <= now) start(program);
  if (!clients_.empty()) last_client_ = now;
  if (now - last_client_ >= kIdleExit && !sandboxes_left()) stopping_ = true;
}

// A sandbox is a child of the spawner that made it, or of ours when that one died.
bool Keeper::sandboxes_left() const {
  std::size_t own = 0;
  for (const auto& [name, program] : programs_) {
    if (program.pid == 0) continue;
    own++;
    if (!children_of(program.pid).empty()) return true;
  }
  return children_of(::getpid()).size() > own;
}

void Keeper::stop_programs() {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  for (auto& [name, program] : programs_) {
    if (program.pid == 0) continue;
    ::kill(program.pid, SIGTERM);
    // It has a moment to take its cgroups down, then no more.
    const Deadline deadline = Deadline::in(std::chrono::seconds(5));
    while (::waitpid(program.pid, nullptr, WNOHANG) == 0) {
      if (deadline.passed()) {
        ::kill(program.pid, SIGKILL);
        ::waitpid(program.pid, nullptr, 0);
        break;
      }
      const timespec wait{0, 50'000'000};
      ::sigtimedwait(&child, nullptr, &wait);
    }
    program.pid = 0;
  }
  programs_.clear();
}

}  // namespace dsec::keeper
