// The keeper, seen from `dsec serve`.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"
#include "protocol/keeper_messages.h"
#include "sys/descriptor_keeper.h"

namespace dsec::backend {

struct KeeperStart {
  std::string data_dir;    // absolute
  std::string helper_dir;  // where dsec-keeper, dsec-spawner and dsec-agent are
  bool use_v1 = true;      // drive the cgroup v1 controllers that the host has
  std::string ready_slots; // how many slots wait for a launch; "" = the spawner's own number
};

// Safe on any thread; calls are made one at a time on one connection.
//
// It holds what it has put or got as well. When the keeper dies, a thread starts
// another at once and puts all of it there, so that this process may die next.
class KeeperClient final : public sys::DescriptorKeeper {
 public:
  explicit KeeperClient(KeeperStart start);
  ~KeeperClient() override;

  Result<void> put(const std::string& name, int fd) override;
  Result<std::vector<sys::KeptDescriptor>> get(const std::string& prefix) override;
  Result<void> drop(const std::string& name) override;
  Result<protocol::KeeperReply> status();
  // Ends every sandbox, the spawner and the keeper, for good. Returns when the keeper is gone.
  Result<void> stop(Deadline deadline);

  // Finds the keeper, or starts one that lives on when this process dies.
  Result<void> find_or_start(Deadline deadline);
  // From now on a keeper that dies is replaced.
  Result<void> watch();

 private:
  // What follows is called with mutex_ held.
  Result<void> connect(Deadline deadline);
  Result<void> start_keeper(Deadline deadline);
  Result<protocol::KeeperReply> exchange(const protocol::KeeperRequest& request, const std::vector<int>& fds,
                                         std::vector<sys::KeptDescriptor>* kept);
  Result<protocol::KeeperReply> call(const protocol::KeeperRequest& request, const std::vector<int>& fds,
                                     std::vector<sys::KeptDescriptor>* kept);

  void run_watch();
  bool stopping() const;

  const KeeperStart start_;
  const std::string path_;
  std::mutex mutex_;  // guards what follows for the length of a call: its purpose is to make them take turns
  sys::Fd connection_;
  std::map<std::string, sys::Fd> held_;
  bool revive_ = false;  // watched: a call that finds no keeper starts one
  sys::Fd stop_event_;
  std::thread watcher_;
};

// A client whose keeper answers, and is replaced when it dies. Blocks until then.
Result<std::unique_ptr<KeeperClient>> start_or_find_keeper(const KeeperStart& start, Deadline deadline);

}  // namespace dsec::backend
