// Exec is one command of a sandbox: from acceptance to its recorded result, and
// its output.
//
// Event loop only. What the agent says comes in through on_…; what the caller
// sees is changed() plus the getters. A finished command is never started again
// and its result never changes; output that left-over children print later is
// stored behind it.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "edge/context.h"
#include "edge/exec_request.h"
#include "edge/notifier.h"
#include "edge/output_stream.h"
#include "edge/wal_records.h"
#include "protocol/agent_messages.h"

namespace dsec::edge {

class LiveSandbox;

enum class ExecStatus : std::uint8_t { kRunning = 0, kExited, kSignaled, kTimedOut, kKilled, kOom, kLost, kFailed };
std::string_view to_string(ExecStatus status);

class Exec : public std::enable_shared_from_this<Exec> {
 public:
  Exec(LiveSandbox& sandbox, std::string id, ExecRequest request);
  ~Exec();

  const std::string& id() const { return id_; }
  const ExecRequest& request() const { return request_; }
  const std::string& command() const { return command_; }  // for people, cut
  ExecStatus status() const { return static_cast<ExecStatus>(result_.status); }
  bool finished() const { return result_.status != 0; }
  bool started() const { return pid_ != 0 || finished(); }
  std::int32_t pid() const { return pid_; }
  std::int64_t accepted_at_ms() const { return accepted_at_ms_; }
  const OpFinishedRecord& result() const { return result_; }
  Notifier& changed() { return changed_; }
  OutputStream& stream(protocol::OutputStream which) { return streams_[which == protocol::OutputStream::kStdout ? 0 : 1]; }

  // Set by the sandbox at acceptance or recovery.
  std::string fingerprint;
  bool start_command = false;
  bool restartable = true;
  std::string processes_record;  // "" = as made for its id
  void accepted(std::int64_t at_ms);
  void give_processes(std::shared_ptr<backend::Operation> processes) { processes_ = std::move(processes); }
  const std::shared_ptr<backend::Operation>& processes() const { return processes_; }

  // Its time goes on: the sandbox stood still.
  void go_on() {
    if (kill_reason_ == KillReason::kNone) arm();
  }
  // Hands the command to the agent; again after a reconnect, when the agent does not know it.
  void start();
  // Nothing ran and nothing will: the operation could not be prepared.
  void fail(const std::string& stage, int error_number, const std::string& message);
  // The agent told about it after a reconnect.
  void reattach(const protocol::OperationStatus& status);

  void on_started(const protocol::ExecStarted& message);
  void on_failed(const protocol::ExecFailed& message);
  void on_output(const protocol::Output& message);
  void on_exited(const protocol::Exited& message);
  void on_stdin_ack(const protocol::StdinAck& message);

  enum class KillReason { kNone, kCaller, kTimeout, kDeadline };
  // Ends the whole tree of the command; its result comes when it is gone, at the latest after the grace.
  void kill(KillReason reason);
  // The sandbox is over. Finishes with kKilled or kLost.
  void lose(ExecStatus status, bool infra, const std::string& why);

  Result<void> signal(int number, protocol::SignalScope scope);
  Result<void> resize(std::uint16_t rows, std::uint16_t columns);
  // Bytes for stdin. Taken in whole when there is room (stdin_room()); kConflict after the end.
  Result<void> write_stdin(std::string_view bytes, bool end);
  std::size_t stdin_room() const;
  bool stdin_closed() const { return stdin_closed_; }
  std::size_t stdin_pending() const { return stdin_.size(); }
  std::uint64_t stdin_offset() const { return stdin_start_ + stdin_.size(); }

  // Tells the agent what is stored. After a follower has moved, too.
  void acknowledge();
  // True while processes of it may be left.
  bool populated() const { return processes_ != nullptr && processes_->populated(); }
  // Gives the empty cgroup back, to the sandbox's next command where it can be
  // used again. Returns true when nothing is left to watch.
  bool let_go();

  // Recovery.
  void restore(const OpFinishedRecord& result);
  OutputStream& restore_stream(std::uint8_t number) { return streams_[number == 1 ? 0 : 1]; }

 private:
  void arm();
  void on_timer();
  void settle();
  void settle_soon();
  asio::awaitable<void> settle_with_usage();
  void finish(ExecStatus status);
  void pump_stdin();
  void release_if_done();
  std::uint64_t frozen_usec() const { return processes_ ? processes_->frozen_usec() : 0; }
  bool ended() const { return streams_[0].ended() && streams_[1].ended(); }

  LiveSandbox& sandbox_;
  const std::string id_;
  ExecRequest request_;
  std::string command_;
  std::shared_ptr<backend::Operation> processes_;
  std::int64_t accepted_at_ms_ = 0;
  Instant accepted_at_{};
  Instant started_at_{};
  std::int32_t pid_ = 0;
  bool sent_ = false;
  std::optional<protocol::Exited> exited_;
  Instant exited_at_{};
  KillReason kill_reason_ = KillReason::kNone;
  std::uint64_t needed_[2] = {0, 0};  // bytes that had been printed before the exit
  bool settling_ = false;
  bool released_ = false;
  OutputStream streams_[2] = {OutputStream(1), OutputStream(2)};
  std::uint64_t room_;
  std::uint64_t acknowledged_[2] = {0, 0};
  // stdin: bytes from stdin_start_ on that the agent has not acknowledged.
  std::string stdin_;
  std::uint64_t stdin_start_ = 0;
  std::uint64_t stdin_sent_ = 0;
  bool stdin_ending_ = false;
  bool stdin_end_sent_ = false;
  bool stdin_closed_ = false;
  std::uint64_t stalled_base_usec_ = 0;
  bool stalled_base_known_ = false;
  OpFinishedRecord result_;
  asio::steady_timer timer_;
  Notifier changed_;
};

}  // namespace dsec::edge
