// dsec-keeper: what must outlive serve, edge and spawner.
//
// One thread and one epoll loop. It holds descriptors by name, hands out
// duplicates, runs the node's helper programs (the spawner) and runs them again
// when they end, and reaps whatever is orphaned to it: it is the child subreaper
// of every sandbox. It parses nothing but its own small messages and does
// nothing on behalf of a sandbox.
//
// It ends on Stop, or by itself when for kIdleExit nobody was connected and no
// child but its own programs was left: then no sandbox can need it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "protocol/keeper_messages.h"
#include "sys/fd.h"

namespace dsec::keeper {

inline constexpr std::chrono::seconds kIdleExit{60};

class Keeper {
 public:
  // Takes <directory>/keeper.lock and listens at <directory>/keeper.sock.
  // kConflict when another keeper lives there.
  static Result<std::unique_ptr<Keeper>> open(const std::string& directory);
  ~Keeper();
  // Until Stop or idleness. The error says why the loop cannot go on.
  Result<void> run();

 private:
  struct Program {
    std::vector<std::string> arguments;
    pid_t pid = 0;          // 0 = not running
    Instant start_again{};  // when pid == 0
    Duration pause{};       // before the next start; doubles while starts fail at once
    Instant started{};
  };

  explicit Keeper(std::string directory) : directory_(std::move(directory)) {}
  Result<void> watch(int fd);
  void accept_client();
  void serve(int client);
  void answer(int client, const protocol::KeeperRequest& request, std::vector<sys::Fd> fds);
  void answer_get(int client, const std::string& prefix);
  void start(Program& program);
  void reap();
  void run_timers();
  bool sandboxes_left() const;
  void stop_programs();

  const std::string directory_;
  sys::Fd lock_;
  sys::Fd listener_;
  sys::Fd signals_;
  sys::Fd epoll_;
  std::map<int, sys::Fd> clients_;
  std::map<std::string, sys::Fd> kept_;
  std::map<std::string, Program> programs_;
  std::uint32_t restarts_ = 0;
  Instant last_client_{};
  bool stopping_ = false;
};

}  // namespace dsec::keeper
