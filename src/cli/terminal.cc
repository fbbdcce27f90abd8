#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

namespace dsec::cli {

bool is_terminal(int fd) { return ::isatty(fd) == 1; }

WindowSize window_size() {
  winsize size{};
  for (const int fd : {STDOUT_FILENO, STDIN_FILENO, STDERR_FILENO})
    if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_row != 0 && size.ws_col != 0) return {size.ws_row, size.ws_col};
  return {};
}

Result<RawMode> RawMode::enter() {
  termios now{};
  if (::tcgetattr(STDIN_FILENO, &now) != 0) return errno_error("terminal", errno);
  RawMode mode(now);
  ::cfmakeraw(&now);
  if (::tcsetattr(STDIN_FILENO, TCSADRAIN, &now) != 0) return errno_error("terminal", errno);
  return mode;
}

RawMode::RawMode(RawMode&& other) noexcept : before_(std::exchange(other.before_, std::nullopt)) {}

RawMode::~RawMode() {
  if (before_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &*before_);
}

Result<SignalWatch> SignalWatch::watch(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : signals) sigaddset(&set, number);
  SignalWatch out;
  ::pthread_sigmask(SIG_BLOCK, &set, &out.before_);
  out.fd_ = sys::Fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!out.fd_) return errno_error("signalfd", errno);
  return out;
}

SignalWatch::SignalWatch(SignalWatch&& other) noexcept : fd_(std::move(other.fd_)), before_(other.before_) {}

SignalWatch::~SignalWatch() {
  if (fd_) ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int SignalWatch::next() {
  signalfd_siginfo info{};
  return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

Result<std::string> read_secret(const std::string& prompt) {
  termios before{};
  const bool terminal = ::tcgetattr(STDIN_FILENO, &before) == 0;
  if (terminal) {
    std::fputs(prompt.c_str(), stderr);
    termios silent = before;
    silent.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    ::tcsetattr(STDIN_FILENO, TCSAFLUSH, &silent);
  }
  std::string line;
  char c = 0;
  while (line.size() < 4096 && ::read(STDIN_FILENO, &c, 1) == 1 && c != '\n') line += c;
  if (terminal) {
    ::tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
    std::fputc('\n', stderr);
  }
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
  return line;
}

}  // namespace dsec::cli
