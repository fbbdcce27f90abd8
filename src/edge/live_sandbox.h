// LiveSandbox: one sandbox as its edge knows it, from acceptance until it is forgotten.
//
// Event loop only. Lifecycle operations (launch, adopt, end) are coroutines that
// take turns in the mailbox; everything else (exec, files, ports) goes on beside
// them and looks at the state. Each transition has a deadline, and each failed
// one falls back to the end of the sandbox.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "edge/agent_channel.h"
#include "edge/brake.h"
#include "edge/context.h"
#include "edge/exec.h"
#include "edge/mailbox.h"
#include "edge/memory_history.h"
#include "edge/output_spool.h"
#include "edge/wal_records.h"
#include "model/sandbox.h"

namespace dsec::image {
struct PackOptions;
}

namespace dsec::edge {

class FileTransfer;

struct SandboxEvent {
  std::uint64_t sequence = 0;  // of the edge, growing
  std::int64_t at_ms = 0;
  std::string sandbox_id;
  std::string project;
  std::string type;    // "accepted", "running", "ending", "ended", "exec_started", "exec_finished", …
  std::string detail;  // for people
};

struct Launched {
  std::shared_ptr<backend::Instance> instance;
  LaunchedRecord record;
  sys::Fd agent;  // connected, Hello sent
  std::shared_ptr<backend::Operation> first_operation;  // or nullptr
};

// The frame that opens a connection to the sandbox's agent.
std::string hello_frame(const AcceptedRecord& accepted, std::uint64_t epoch);

// What a sandbox needs from its edge.
// What was made of a writable layer, and its mark then: while that stands, it would be the same again.
struct LastPack {
  std::uint64_t change_mark = 0;
  std::string digest;
};

class SandboxOwner {
 public:
  virtual ~SandboxOwner() = default;
  // Layers, writable layer, backend, first connection. Any thread; blocks. After
  // an error nothing is left of the sandbox.
  virtual Result<Launched> launch_blocking(const AcceptedRecord& accepted, Deadline deadline) = 0;
  virtual void publish(SandboxEvent& event) = 0;  // gives it its sequence
  // Marks whoever met faults of its data since the last time. Before a failure is judged.
  virtual void note_data_faults() = 0;
  // The same for one that was just taken up or found gone: what came while nobody read counts.
  virtual void note_earlier_data_faults(class LiveSandbox& sandbox) = 0;
  // The state or the end of a sandbox changed: indexes and totals follow.
  virtual void on_sandbox_changed(class LiveSandbox& sandbox) = 0;
  // Whether a sandbox may have this network: rules that mean something, services that are defined.
  virtual Result<void> check_network(const model::Network& network) const = 0;
  // Runs before the first command: listeners, policies. An error ends the sandbox.
  virtual asio::awaitable<Result<void>> connect_network(std::shared_ptr<class LiveSandbox> sandbox) = 0;
  virtual void disconnect_network(class LiveSandbox& sandbox) = 0;
  virtual std::map<std::string, std::string> network_environment(const class LiveSandbox& sandbox) const = 0;
  // Of one that has ended nothing is left when it returns: no record, name, output, history.
  virtual asio::awaitable<Result<void>> forget_on_request(std::string sandbox_id) = 0;
  // What the sandbox has written, as a new layer; its processes stand while that is
  // read, and `thawed` is called when they go on, whatever came of it. Any thread; blocks.
  // With `last` (else nullptr): what was made last is the answer where nothing has changed, and
  // nothing stands for it; what is made now is noted there.
  virtual Result<model::LayerRecord> pack_blocking(const AcceptedRecord& accepted, backend::Instance& instance, image::PackOptions options,
                                                   const std::function<void()>& thawed, LastPack* last) = 0;
  // What the sandbox takes of its disk. Any thread; blocks.
  virtual Result<backend::WrittenSize> written_size(const std::string& sandbox_id, backend::Instance& instance) = 0;
  // The writable layer of an ended sandbox. Any thread.
  virtual Result<void> remove_upper(const std::string& sandbox_id, const std::string& upper_record) = 0;
};

class LiveSandbox final : public std::enable_shared_from_this<LiveSandbox>, public AgentEvents {
 public:
  LiveSandbox(Context& context, SandboxOwner& owner, AcceptedRecord accepted, std::string node);
  ~LiveSandbox() override;

  const std::string& id() const { return sandbox_.id; }
  const std::string& project() const { return sandbox_.project; }
  const model::Sandbox& view() const { return sandbox_; }
  const AcceptedRecord& accepted() const { return accepted_; }
  model::SandboxState state() const { return sandbox_.state; }
  bool running() const { return sandbox_.state == model::SandboxState::kRunning; }
  // Between the begin of a pause and the end of its resume.
  bool at_rest() const {
    using enum model::SandboxState;
    return sandbox_.state == kPausing || sandbox_.state == kPaused || sandbox_.state == kResuming;
  }
  bool over() const { return sandbox_.state == model::SandboxState::kEnding || sandbox_.state == model::SandboxState::kEnded; }
  Notifier& changed() { return changed_; }
  Context& context() { return context_; }
  SandboxOwner& owner() { return owner_; }
  std::shared_ptr<backend::Instance> instance() const { return instance_; }
  const std::string& backend_record() const { return backend_record_; }
  const std::string& upper_record() const { return upper_record_; }

  // ---- lifecycle (sandbox_lifecycle.cc)
  asio::awaitable<void> launch();
  // `instance` was adopted; nullptr: it is not running any more.
  asio::awaitable<void> readopt(std::shared_ptr<backend::Instance> instance, bool same_boot);
  // Idempotent; the first cause stands. Returns when the sandbox has ended: one
  // that waits for its adoption is ended by it.
  asio::awaitable<void> end(model::EndCause cause, std::string detail);
  // As end(), not waited for.
  void begin_end(model::EndCause cause, std::string detail);
  // The clock moved on: idle time, lifetime, health. Called every second.
  void tick();
  // Also while the loop is taken down, when the edge is gone already.
  void touch() {
    last_activity_ = std::chrono::steady_clock::now();
    if (running()) stop_reclaim();
  }
  // Keeps it from being idle while it lives.
  class Use {
   public:
    explicit Use(std::shared_ptr<LiveSandbox> sandbox) : sandbox_(std::move(sandbox)) {
      ++sandbox_->uses_;
      sandbox_->touch();
    }
    Use(Use&&) = default;
    Use& operator=(Use&&) = delete;
    ~Use() {
      if (!sandbox_) return;
      --sandbox_->uses_;
      sandbox_->touch();
    }

   private:
    std::shared_ptr<LiveSandbox> sandbox_;
  };
  Result<void> patch(const model::SandboxSpec& spec);

  // ---- pause (sandbox_pause.cc)
  struct PauseOptions {
    std::string reason = "user";
    model::Wake wake = model::Wake::kAny;
    std::uint64_t fence = 0;  // kHolder: what who wakes it has to carry
    // A timeout that was noticed is not one any more when somebody came before its turn.
    enum class When { kAlways, kIfIdle, kIfExpired, kIfUnused } when = When::kAlways;
  };
  // ---- memory (sandbox_memory.cc)
  MemoryHistory& memory() { return memory_; }
  // Commands run, or a request is on its way.
  bool busy() const { return uses_ != 0 || used_execs() != 0; }
  Duration unused_for(Instant now) const { return now - last_activity_; }
  // Since it was last used.
  bool trimmed() const { return trimmed_at_ > last_activity_; }
  BrakeSandbox for_brake() const;
  // Gives back what it does not need while nobody uses it; not waited for. The next use ends it.
  void begin_trim(const std::string& why);
  // Not waited for.
  void begin_pause(PauseOptions options);

  // In its turn, behind a launch or a pack: its processes stand when it returns, its
  // memory is given back afterwards. Of one that is paused `wake` may get narrower,
  // and nothing else changes. kConflict for one that is over or held; after an error it runs on.
  asio::awaitable<Result<void>> pause(PauseOptions options);
  // In its turn, behind a pause; one that runs is left as it is. After an error it is
  // still paused. kConflict where a lease holder is waited for and `fence` is not its.
  asio::awaitable<Result<void>> resume(std::optional<std::uint64_t> fence, std::string by);
  // For what needs the payload: returns when it runs, or was not paused in the first
  // place. kDeadlineExceeded at `by`; the resume goes on.
  asio::awaitable<Result<void>> wake(std::optional<std::uint64_t> fence, Instant by);
  // Whether a request with this fence is of the present holder or a later one.
  bool passes(std::uint64_t fence) const { return fence >= sandbox_.fence; }
  Result<void> raise_fence(std::uint64_t fence);
  void stop_reclaim();
  // Until release(): nothing of it is made. Before launch().
  void hold(const std::string& why);
  bool held() const { return sandbox_.state == model::SandboxState::kQueued; }
  Result<void> release();

  // ---- pack (pack.cc)
  // kConflict when it does not run. The end of the sandbox is the pack's.
  // `event` is what the sandbox's story calls it.
  asio::awaitable<Result<model::LayerRecord>> pack(image::PackOptions options, std::shared_ptr<std::atomic<bool>> cancelled, std::string event, bool unless_unchanged);
  void give_up_pack();

  // ---- rollback (rollback.cc)
  // A new container over these layers takes the place of this one. Commands end, sessions
  // are gone; id, name, clocks, rules and keys stay. kConflict when it does not run.
  asio::awaitable<Result<void>> rollback(std::string checkpoint, std::vector<std::string> layer_digests);

  // While its files are read: commands that start and calls that write files wait.
  bool stands_still() const { return stands_still_; }
  // Whether `exec` has to wait; it is started then when the others go on.
  bool holds_back(std::shared_ptr<Exec> exec);
  asio::awaitable<Result<void>> forget() { return owner_.forget_on_request(id()); }
  const std::deque<SandboxEvent>& events() const { return events_; }
  void note_event(std::string type, std::string detail);
  // As the one above, until this process ends.
  void keep_event(std::string type, std::string detail);
  // One of its processes met missing, wrong or very late data.
  void mark_data_fault(std::int64_t at_ms, const std::string& detail);
  // Stops following the sandbox, which runs on: this process ends.
  void let_go();

  // ---- recovery, before readopt()
  void restore_launched(const LaunchedRecord& record);
  void restore_started(const StartedRecord& record);
  void restore_transition(const TransitionRecord& record);
  void restore_patched(const PatchedRecord& record);
  void restore_rolled_back(const RolledBackRecord& record);
  void restore_data_fault(const DataFaultRecord& record);
  const SandboxEvent& restore_event(EventRecord record);
  void restore_paused(const PausedRecord& record);
  void restore_resumed(const ResumedRecord& record);
  void restore_fenced(const FencedRecord& record) { sandbox_.fence = std::max(sandbox_.fence, record.fence); }
  void restore_op(const OpAcceptedRecord& record);
  void restore_result(OpFinishedRecord record);
  void restore_ended(const EndedRecord& record);
  void restore_spool();

  // ---- commands (sandbox_execs.cc)
  // kConflict for another request under a known key. `replayed` tells that nothing was started.
  struct Started {
    std::shared_ptr<Exec> exec;
    bool replayed = false;
  };
  enum class Purpose { kCall, kStartCommand };
  // `request_text`: the JSON that `request` was read from; "" = made from it.
  bool knows_key(const std::string& key) const { return !key.empty() && exec_keys_.contains(key); }
  Result<Started> start_exec(ExecRequest request, std::string_view request_text, Purpose purpose = Purpose::kCall);
  // Ends the session's shell; its name may be used again.
  Result<void> close_session(const std::string& name);
  std::shared_ptr<Exec> find_exec(const std::string& id) const;
  const std::map<std::string, std::shared_ptr<Exec>>& execs() const { return execs_; }
  std::size_t running_execs() const { return running_execs_; }

  bool channel_open() const { return channel_ != nullptr && channel_->open() && greeted_; }
  void send(protocol::MessageType type, std::string_view body, int fd = -1, AgentChannel::Lane lane = AgentChannel::Lane::kControl);
  // Goes with the next frame, or within about a second: for what nobody waits for.
  void send_lazily(protocol::MessageType type, std::string_view body);
  // Whether its failures are the platform's.
  bool met_data_fault();
  OutputSpool& spool() { return spool_; }
  bool note_spool_error() { return !std::exchange(spool_error_noted_, true); }
  bool may_keep_inline(std::size_t bytes);
  std::uint64_t new_oom_kills(std::uint64_t seen);
  std::vector<std::string> exec_environment(const ExecRequest& request);
  std::string default_cwd() const { return accepted_.config.cwd; }
  std::string default_user() const { return sandbox_.spec.user.empty() ? accepted_.config.user : sandbox_.spec.user; }
  void on_exec_finished(Exec& exec);
  // A finished command's processes, for the next one.
  bool wants_spare() const { return spare_ == nullptr && !preparing_ && instance_ != nullptr && !over(); }
  void give_spare(std::shared_ptr<backend::Operation> spare) { spare_ = std::move(spare); }

  // ---- files: transfers hear what the agent says about their request
  std::uint64_t add_transfer(FileTransfer& transfer);
  void remove_transfer(std::uint64_t request_id);

 private:
  void on_hello(const protocol::HelloReply& reply) override;
  void on_pong(const protocol::Ping& pong) override;
  void on_exec_started(const protocol::ExecStarted& message) override;
  void on_exec_failed(const protocol::ExecFailed& message) override;
  void on_output(protocol::Output message) override;
  void on_exited(const protocol::Exited& message) override;
  void on_stdin_ack(const protocol::StdinAck& message) override;
  void on_file_reply(protocol::FileReply message) override;
  void on_file_data(protocol::FileData message) override;
  void on_file_ack(const protocol::FileAck& message) override;
  void on_channel_lost(const std::string& why) override;

  // Connects and greets; the reply has come when it returns.
  asio::awaitable<Result<void>> connect(Instant by);
  asio::awaitable<void> reconnect(std::string why);
  asio::awaitable<Result<void>> wait_until_ready(Instant by);
  asio::awaitable<void> end_after_loss(std::string why);
  asio::awaitable<void> open_processes(std::shared_ptr<Exec> exec);
  void watch_pidfd();
  enum class Greeting { kOwed, kSent };
  void attach(sys::Fd socket, Greeting hello);
  // In the turn of the caller.
  asio::awaitable<void> end_now(model::EndCause cause, std::string detail);
  // The container, its commands' cgroups, the writable layer. In the turn of the caller.
  asio::awaitable<Result<void>> take_down();
  // From a launch on the pool to a running sandbox, or to its end.
  asio::awaitable<void> bring_to_life(Instant by);
  asio::awaitable<void> put_in_place();
  asio::awaitable<void> bring_up(sys::Fd agent, Greeting hello, Instant by);
  void set_state(model::SandboxState state);
  // As the one above; the event says more than the state, or "" = there is none.
  void set_state(model::SandboxState state, std::string event, std::string detail);
  void resume_execs();
  void become_running();
  void prepare_operation();
  asio::awaitable<void> prepare_spare();
  std::string new_op_id();
  void start_start_command();
  void fail_open_work(model::EndCause cause, const std::string& why);
  void forget_some_execs();
  // What a process that died over a pack has left.
  asio::awaitable<void> thaw_left_frozen();
  // The payload stands or runs, as the log has it. After a restart.
  asio::awaitable<void> stand_as_logged();
  asio::awaitable<void> taken_up();
  bool is_idle() const;
  // Without the start command, which runs as long as the sandbox does.
  std::size_t used_execs() const { return running_execs_ - (start_exec_ != nullptr && start_exec_running() ? 1 : 0); }
  bool start_exec_running() const;
  asio::awaitable<void> trim(std::string why, std::shared_ptr<std::atomic<bool>> cancelled);
  bool is_expired() const { return sandbox_.expires_at_ms != 0 && context_.now_ms() >= sandbox_.expires_at_ms; }
  Result<void> change_wake(const PauseOptions& options);
  Result<void> may_wake(std::optional<std::uint64_t> fence) const;
  asio::awaitable<void> wake_up(std::optional<std::uint64_t> fence);
  void log_that_it_runs();
  void run_again(const std::string& event, const std::string& detail);
  void begin_reclaim();
  asio::awaitable<void> give_memory_back(std::shared_ptr<std::atomic<bool>> cancelled);
  bool files_are_written() const;
  void go_on();

  Context& context_;
  SandboxOwner& owner_;
  AcceptedRecord accepted_;
  model::Sandbox sandbox_;
  std::string backend_record_;
  std::string upper_record_;
  std::shared_ptr<backend::Instance> instance_;
  std::shared_ptr<AgentChannel> channel_;
  bool greeted_ = false;   // the hello of this connection was answered
  std::vector<protocol::OperationStatus> hello_operations_;
  bool reconnecting_ = false;
  bool rolling_back_ = false;  // between the record of it and the new container's
  bool awaits_adoption_ = false;  // from the log; whether it still runs is not known yet
  boost::asio::posix::stream_descriptor pidfd_;
  bool gone_ = false;      // the host says that PID 1 has ended
  Mailbox mailbox_;
  Notifier changed_;
  bool end_wanted_ = false;
  model::EndCause end_cause_ = model::EndCause::kNone;
  std::string end_detail_;

  std::map<std::string, std::shared_ptr<Exec>> execs_;  // by id
  std::deque<std::string> exec_order_;
  std::unordered_map<std::string, std::string> exec_keys_;
  std::size_t running_execs_ = 0;
  std::vector<std::shared_ptr<Exec>> lingering_;  // finished, with processes left
  // The next command's processes: prepared ahead of it, or left by an earlier one.
  // While they are prepared for spare_id_, a command may claim id and processes.
  std::shared_ptr<backend::Operation> spare_;
  std::string spare_id_;
  bool preparing_ = false;
  std::shared_ptr<Exec> spare_claim_;
  std::shared_ptr<Exec> start_exec_;
  std::set<std::string> sessions_;  // that have their environment
  std::vector<OpFinishedRecord> restored_results_;
  std::size_t inline_bytes_ = 0;
  std::uint64_t oom_seen_ = 0;
  bool spool_error_noted_ = false;
  OutputSpool spool_;

  std::map<std::uint64_t, FileTransfer*> transfers_;
  bool stands_still_ = false;
  std::vector<std::shared_ptr<Exec>> held_back_;
  LastPack last_pack_;  // of this container
  std::shared_ptr<std::atomic<bool>> pack_cancelled_;  // of the pack that goes on
  std::size_t pauses_coming_ = 0;                      // called, and not in their turn yet
  Instant no_timeout_before_{};                        // a pause for it has just failed
  std::shared_ptr<std::atomic<bool>> reclaim_cancelled_;
  bool waking_ = false;                                // a request has called for a resume
  std::optional<Error> wake_error_;                    // of the last such resume
  std::uint64_t wakes_ended_ = 0;
  std::uint64_t next_request_ = 1;

  Instant last_activity_;
  Instant trimmed_at_{};
  MemoryHistory memory_;
  std::size_t uses_ = 0;
  std::uint64_t ping_nonce_ = 0;
  std::uint64_t pong_nonce_ = 0;
  Instant last_ping_{};
  std::deque<SandboxEvent> events_;
};

}  // namespace dsec::edge
