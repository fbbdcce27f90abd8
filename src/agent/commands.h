// Every command that the edge has asked for and not released: births, output,
// input, sessions, ends.
#pragma once

#include <sys/resource.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/accounts.h"
#include "agent/event_loop.h"
#include "agent/launcher.h"
#include "agent/operation.h"
#include "agent/shell_session.h"
#include "protocol/frame.h"

namespace dsec::agent {

class Commands {
 public:
  // Frames go to whoever is connected; nobody may be.
  struct Peer {
    std::function<void(protocol::MessageType, std::string_view body)> send;
    std::function<void()> data_ready;
  };
  struct Settings {
    Standing standing;
    rlimit open_files{};
    bool plain = false;
  };

  Commands(EventLoop& loop, Settings settings, Peer peer);

  // The root filesystem of the sandbox has been entered: once, before any command.
  void root_is_there();
  void set_no_new_privs(bool wanted) { no_new_privs_ = wanted; }

  void start(protocol::ExecStart request, sys::Fd cgroup);
  void write_input(const protocol::Stdin& message);
  void signal(const protocol::Signal& message);
  void resize(const protocol::Resize& message);
  void acknowledge(const protocol::OutputAck& message);
  void release(const std::string& op_id);
  void close_session(const std::string& id);

  // A child of aether was reaped.
  void on_child_exit(pid_t pid, int wait_status, const rusage& usage);

  // The next whole Output frame, the commands taking turns; "" when there is none.
  std::string next_data();
  std::vector<protocol::OperationStatus> operations() const;
  std::vector<std::string> sessions() const;
  // The edge is another one: tell it all that it may not know, after HelloReply.
  void repeat_all();
  // For an ordinary process (--plain) that ends: its children end with it.
  void kill_all();

 private:
  struct FileIdentity {
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = 0;
    std::int64_t changed_ns = 0;
    bool operator==(const FileIdentity&) const = default;
  };
  struct Session {
    explicit Session(std::string id) : state(std::move(id)) {}
    ShellSession state;
    std::string running;             // op_id
    std::deque<std::string> waiting;  // op_ids
    bool closed = false;
  };
  struct Entry {
    std::unique_ptr<Operation> operation;
    sys::Fd cgroup;  // until it starts
    std::shared_ptr<Session> session;
    sys::Fd session_dump;
    std::string start_cwd;
    bool in_turn = false;
    Instant born_at{};
    EventLoop::TimerId birth_timer = 0;  // while the birth is not told
  };

  Entry* find(const std::string& op_id);
  void tell_state(Entry& entry);
  void hold_birth(Entry& entry);
  void tell_birth(Entry& entry);
  void begin(Entry& entry);
  Result<void> prepare(Entry& entry);
  void fail(Entry& entry, std::string stage, int error_number, std::string message);
  void on_born(const std::string& op_id, PayloadPlan& plan, bool ran);
  void on_data(const std::string& op_id);
  void on_settled(const std::string& op_id);
  void finish_exit(Entry& entry, int wait_status, const rusage& usage);
  void leave_session(Entry& entry);
  void forget_if_finished(const std::string& op_id);
  void check_shell(Entry& entry);
  void raise_oom_score(pid_t pid);

  EventLoop& loop_;
  const Settings settings_;
  Peer peer_;
  bool no_new_privs_ = false;
  Launcher launcher_;
  sys::Fd proc_;
  sys::Fd null_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::map<pid_t, std::string> running_;
  std::map<std::string, std::shared_ptr<Session>, std::less<>> sessions_;
  std::deque<std::string> turns_;
  std::deque<std::string> lingering_;  // released, but something holds their pipes
  std::deque<std::string> failed_;     // in the order in which they failed

  // An end that came before the report of the birth.
  struct EarlyExit {
    pid_t pid = 0;
    int wait_status = 0;
    rusage usage{};
  } early_exit_;
  std::optional<FileIdentity> shell_;
};

}  // namespace dsec::agent
