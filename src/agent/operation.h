// One command and what connects it to the edge: two output streams (or a
// terminal), standard input, and its end.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "agent/event_loop.h"
#include "agent/output_stream.h"
#include "protocol/agent_messages.h"
#include "sys/fd.h"

namespace dsec::agent {

// A process that outlives the command may hold its pipes; what it prints within
// this time still counts as the command's.
inline constexpr std::chrono::milliseconds kDrainGrace{100};
inline constexpr std::size_t kEarlySignals = 16;
// An edge that acknowledges nothing does not hold back the end of a command for longer.
inline constexpr std::chrono::seconds kDrainLimit{10};
// A command closes its output as it ends: the ends and its exit leave together,
// unless it lives on for longer than this.
inline constexpr std::chrono::milliseconds kEndDelay{3};

class Operation {
 public:
  enum class State : std::uint8_t { kWaiting, kStarting, kRunning, kExited, kFailed };
  struct Events {
    std::function<void()> data;            // next_output() has something, or may have
    std::function<void()> settled;         // Exited may be told: settled() became true
    std::function<void(std::uint64_t offset, bool closed)> stdin_taken;
  };

  Operation(EventLoop& loop, protocol::ExecStart request, Events events);
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  const protocol::ExecStart& request() const { return request_; }
  const std::string& id() const { return request_.op_id; }
  State state() const { return state_; }
  bool released() const { return released_; }

  // The non-blocking near ends; the far ones are the child's.
  void attach_output(protocol::OutputStream stream, sys::Fd from);
  void attach_input(sys::Fd to);
  void attach_terminal(sys::Fd master, sys::Fd master_for_input);

  void set_starting() { state_ = State::kStarting; }
  void set_running(pid_t pid, sys::Fd pidfd);
  void set_failed(protocol::ExecFailed failure);
  void set_exited(int wait_status, const rusage& usage);

  // A whole Output frame, "" when nothing is to be sent.
  std::string next_output();
  void acknowledge(protocol::OutputStream stream, std::uint64_t offset);
  // The edge is another: unacknowledged output, ends and the exit are to be told again.
  void rewind();
  // Nobody asks for it any more: its output is read on and dropped.
  void release();
  // Nothing is left that could happen.
  bool finished() const;

  // False when bytes are missing between this and what came before.
  bool write_input(std::uint64_t offset, std::string_view bytes, bool end);
  void signal(int number, protocol::SignalScope scope);
  // Those that came before set_running().
  void send_early_signals();
  void resize(std::uint16_t rows, std::uint16_t columns);

  pid_t pid() const { return pid_; }
  bool settled() const;
  bool exit_told() const { return exit_told_; }
  void set_exit_told() { exit_told_ = true; }
  std::uint64_t input_taken() const { return input_taken_; }
  bool has_input() const { return request_.open_stdin || request_.terminal.wanted; }
  bool input_closed() const { return !input_.valid(); }
  const protocol::ExecFailed& failure() const { return failure_; }
  protocol::Exited& exit() { return exit_; }
  protocol::OperationStatus status() const;

 private:
  struct Stream {
    protocol::OutputStream name = protocol::OutputStream::kStdout;
    sys::Fd from;  // invalid: at its end, or never there
    OutputBuffer buffer;
    bool used = false;
    bool end_told = false;
    bool end_held = false;  // until the end timer, or the command's exit
    std::uint64_t settled_at = 0;  // what was printed before the command was reaped
  };
  Stream& stream(protocol::OutputStream name) { return streams_[name == protocol::OutputStream::kStdout ? 0 : 1]; }
  void watch(Stream& stream);
  void on_readable(Stream& stream);
  void end_stream(Stream& stream);
  void tell_ends();
  void close_input();
  void on_writable();
  void check_settled();

  EventLoop& loop_;
  protocol::ExecStart request_;
  Events events_;
  State state_ = State::kWaiting;
  bool released_ = false;
  bool terminal_ = false;
  pid_t pid_ = 0;
  sys::Fd pidfd_;
  std::array<Stream, 2> streams_;

  sys::Fd input_;
  std::string input_waiting_;
  std::uint64_t input_received_ = 0;
  std::uint64_t input_taken_ = 0;
  bool input_end_ = false;

  protocol::ExecFailed failure_;
  protocol::Exited exit_;
  bool exit_told_ = false;
  bool settled_told_ = false;
  std::vector<std::pair<int, protocol::SignalScope>> early_signals_;
  bool grace_passed_ = false;
  bool limit_passed_ = false;
  EventLoop::TimerId grace_timer_ = 0;
  EventLoop::TimerId limit_timer_ = 0;
  EventLoop::TimerId end_timer_ = 0;
};

}  // namespace dsec::agent
