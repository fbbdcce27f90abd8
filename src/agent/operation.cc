#include "agent/operation.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "protocol/frame.h"

namespace dsec::agent {
namespace {
constexpr std::size_t kReadBytes = 32 << 10;
constexpr char kEndOfFileKey = 4;  // ^D
}  // namespace

Operation::Operation(EventLoop& loop, protocol::ExecStart request, Events events)
    : loop_(loop), request_(std::move(request)), events_(std::move(events)) {
  streams_[1].name = protocol::OutputStream::kStderr;
}

Operation::~Operation() {
  for (Stream& one : streams_) {
    if (one.from.valid()) loop_.forget(one.from.get());
  }
  if (input_.valid()) loop_.forget(input_.get());
  loop_.cancel(grace_timer_);
  loop_.cancel(limit_timer_);
  loop_.cancel(end_timer_);
}

void Operation::attach_output(protocol::OutputStream name, sys::Fd from) {
  Stream& one = stream(name);
  one.from = std::move(from);
  one.used = true;
  watch(one);
}

void Operation::attach_input(sys::Fd to) {
  input_ = std::move(to);
  on_writable();  // what came while the command waited
}

void Operation::attach_terminal(sys::Fd master, sys::Fd master_for_input) {
  terminal_ = true;
  attach_input(std::move(master_for_input));
  attach_output(protocol::OutputStream::kStdout, std::move(master));
}

void Operation::set_running(pid_t pid, sys::Fd pidfd) {
  state_ = State::kRunning;
  pid_ = pid;
  pidfd_ = std::move(pidfd);
}

void Operation::set_failed(protocol::ExecFailed failure) {
  state_ = State::kFailed;
  failure_ = std::move(failure);
  for (Stream& one : streams_) {
    if (one.from.valid()) loop_.forget(one.from.get());
    one.from.reset();
    one.used = false;
  }
  close_input();
}

void Operation::set_exited(int wait_status, const rusage& usage) {
  state_ = State::kExited;
  pidfd_.reset();
  exit_.op_id = id();
  exit_.wait_status = wait_status;
  exit_.user_usec = static_cast<std::uint64_t>(usage.ru_utime.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(usage.ru_utime.tv_usec);
  exit_.system_usec = static_cast<std::uint64_t>(usage.ru_stime.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(usage.ru_stime.tv_usec);
  exit_.max_rss_kb = static_cast<std::uint64_t>(usage.ru_maxrss);

  // All that the command itself wrote is in the pipes by now.
  for (Stream& one : streams_) {
    int waiting = 0;
    if (one.from.valid() && !terminal_) ::ioctl(one.from.get(), FIONREAD, &waiting);
    one.settled_at = one.buffer.produced() + static_cast<std::uint64_t>(waiting);
  }
  for (Stream& one : streams_) on_readable(one);
  tell_ends();
  grace_timer_ = loop_.after(kDrainGrace, [this] {
    grace_timer_ = 0;
    grace_passed_ = true;
    check_settled();
  });
  limit_timer_ = loop_.after(kDrainLimit, [this] {
    limit_timer_ = 0;
    limit_passed_ = true;
    check_settled();
  });
  check_settled();
}

bool Operation::settled() const {
  if (state_ != State::kExited) return false;
  if (limit_passed_) return true;
  bool ended = true;
  for (const Stream& one : streams_) {
    if (!one.used) continue;
    if (one.buffer.sent() < one.settled_at) return false;
    ended = ended && !one.from.valid() && one.end_told;
  }
  return ended || grace_passed_;
}

void Operation::check_settled() {
  if (settled_told_ || !settled()) return;
  settled_told_ = true;
  events_.settled();
}

bool Operation::finished() const {
  if (state_ == State::kFailed) return true;
  if (state_ != State::kExited) return false;
  for (const Stream& one : streams_) {
    if (one.from.valid()) return false;
  }
  return true;
}

// A full window takes the descriptor out of the loop: an end with nobody behind
// it would be reported again and again.
void Operation::watch(Stream& one) {
  if (!one.from.valid()) return;
  const bool wanted = released_ || one.buffer.room() > 0;
  const bool watched = loop_.watches(one.from.get());
  if (wanted && !watched) {
    loop_.watch(one.from.get(), EPOLLIN, [this, &one](std::uint32_t) { on_readable(one); });
  } else if (!wanted && watched) {
    loop_.forget(one.from.get());
  }
}

void Operation::on_readable(Stream& one) {
  if (!one.from.valid()) return;
  char bytes[kReadBytes];
  const std::size_t room = released_ ? sizeof bytes : std::min(sizeof bytes, one.buffer.room());
  if (room > 0) {
    const ssize_t got = ::read(one.from.get(), bytes, room);
    if (got > 0) {
      const std::string_view text(bytes, static_cast<std::size_t>(got));
      if (released_) {
        one.buffer.skip(text.size());
      } else {
        one.buffer.append(text);
        events_.data();
      }
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return end_stream(one);  // a terminal without a process answers EIO
    }
  }
  watch(one);
}

void Operation::end_stream(Stream& one) {
  loop_.forget(one.from.get());
  one.from.reset();
  one.settled_at = std::min(one.settled_at, one.buffer.produced());
  if (terminal_) close_input();
  if (state_ == State::kExited) {
    events_.data();
  } else {
    one.end_held = true;
    if (end_timer_ == 0) end_timer_ = loop_.after(kEndDelay, [this] { tell_ends(); });
  }
  check_settled();
}

void Operation::tell_ends() {
  loop_.cancel(std::exchange(end_timer_, 0));
  bool any = false;
  for (Stream& one : streams_) any |= std::exchange(one.end_held, false);
  if (any) events_.data();
}

std::string Operation::next_output() {
  if (released_) return {};
  for (Stream& one : streams_) {
    if (!one.used) continue;
    protocol::Output output{.op_id = id(), .stream = one.name, .offset = one.buffer.sent()};
    output.bytes = one.buffer.take(protocol::kDataChunk);
    output.end = !one.from.valid() && !one.end_held && one.buffer.sent() == one.buffer.produced();
    if (output.bytes.empty() && !(output.end && !one.end_told)) continue;
    one.end_told = output.end;
    std::string frame = protocol::encode_frame(protocol::MessageType::kOutput, protocol::encode(output));
    check_settled();  // the exit is a frame behind this one
    return frame;
  }
  return {};
}

void Operation::acknowledge(protocol::OutputStream name, std::uint64_t offset) {
  Stream& one = stream(name);
  one.buffer.acknowledge(offset);
  watch(one);
}

void Operation::rewind() {
  for (Stream& one : streams_) {
    one.buffer.rewind();
    one.end_told = false;
  }
  exit_told_ = false;
  settled_told_ = false;
  check_settled();
}

void Operation::release() {
  released_ = true;
  for (Stream& one : streams_) {
    one.buffer.clear();
    watch(one);
  }
  close_input();
}

bool Operation::write_input(std::uint64_t offset, std::string_view bytes, bool end) {
  if (offset > input_received_) return false;
  const std::uint64_t repeated = input_received_ - offset;
  bytes = bytes.substr(std::min<std::uint64_t>(repeated, bytes.size()));
  if (input_waiting_.size() + bytes.size() > protocol::kOutputWindow) return false;
  input_received_ += bytes.size();
  input_end_ = input_end_ || end;
  if (input_.valid()) {
    input_waiting_.append(bytes);
    on_writable();
  } else if (has_input() && state_ == State::kWaiting) {
    input_waiting_.append(bytes);
  } else {
    events_.stdin_taken(input_taken_, true);
  }
  return true;
}

void Operation::on_writable() {
  if (!input_.valid()) return;
  const std::uint64_t before = input_taken_;
  while (!input_waiting_.empty()) {
    const ssize_t put = ::write(input_.get(), input_waiting_.data(), input_waiting_.size());
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (put <= 0) {
      close_input();
      events_.stdin_taken(input_taken_, true);
      return;
    }
    input_taken_ += static_cast<std::uint64_t>(put);
    input_waiting_.erase(0, static_cast<std::size_t>(put));
  }
  if (input_waiting_.empty()) {
    input_waiting_ = {};
    loop_.forget(input_.get());
    if (input_end_) {
      if (terminal_) {
        [[maybe_unused]] const auto put = ::write(input_.get(), &kEndOfFileKey, 1);
        input_end_ = false;
      } else {
        close_input();
      }
    }
  } else if (!loop_.watches(input_.get())) {
    loop_.watch(input_.get(), EPOLLOUT, [this](std::uint32_t) { on_writable(); });
  }
  if (input_taken_ != before || input_end_) events_.stdin_taken(input_taken_, false);
}

void Operation::close_input() {
  if (!input_.valid()) return;
  loop_.forget(input_.get());
  input_.reset();
  input_waiting_ = {};
}

// Only while the child is not reaped: then its number is nobody else's.
void Operation::signal(int number, protocol::SignalScope scope) {
  if (number < 1 || number > 64) return;
  // What it prints may be heard of before its birth is: a signal waits for that.
  if (state_ == State::kStarting && early_signals_.size() < kEarlySignals) early_signals_.emplace_back(number, scope);
  if (state_ != State::kRunning) return;
  if (scope == protocol::SignalScope::kProcess) {
    ::syscall(SYS_pidfd_send_signal, pidfd_.get(), number, nullptr, 0);
    return;
  }
  pid_t foreground = 0;
  if (terminal_ && input_.valid() && ::ioctl(input_.get(), TIOCGPGRP, &foreground) == 0 && foreground > 1 && foreground != pid_) {
    ::kill(-foreground, number);
    if (number != SIGKILL && number != SIGTERM && number != SIGHUP) return;
  }
  ::kill(-pid_, number);
}

void Operation::send_early_signals() {
  for (const auto& [number, scope] : std::exchange(early_signals_, {})) signal(number, scope);
}

void Operation::resize(std::uint16_t rows, std::uint16_t columns) {
  if (!terminal_ || !input_.valid()) return;
  const winsize size{.ws_row = rows, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  ::ioctl(input_.get(), TIOCSWINSZ, &size);
}

protocol::OperationStatus Operation::status() const {
  return {.op_id = request_.op_id,
          .state = state_ == State::kExited ? protocol::OperationState::kExited : protocol::OperationState::kRunning,
          .wait_status = exit_.wait_status,
          .stdout_bytes = streams_[0].buffer.produced(),
          .stderr_bytes = streams_[1].buffer.produced(),
          .pid = pid_};
}

}  // namespace dsec::agent
