// The keeper, seen from `dsec serve`.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "protocol/keeper_messages.h"
#include "sys/descriptor_keeper.h"

namespace dsec::backend {

struct KeeperStart {
  std::string data_dir;    // absolute
  std::string helper_dir;  // where dsec-keeper, dsec-spawner and dsec-agent are
  bool use_v1 = true;      // drive the cgroup v1 controllers that the host has
};

// Safe on any thread; calls are made one at a time on one connection, which is
// made again when it broke.
class KeeperClient final : public sys::DescriptorKeeper {
 public:
  explicit KeeperClient(std::string socket_path) : path_(std::move(socket_path)) {}

  Result<void> put(const std::string& name, int fd) override;
  Result<std::vector<sys::KeptDescriptor>> get(const std::string& prefix) override;
  Result<void> drop(const std::string& name) override;
  Result<protocol::KeeperReply> status();
  // Ends every sandbox, the spawner and the keeper. Returns when the keeper is gone.
  Result<void> stop(Deadline deadline);

 private:
  Result<void> connect();
  Result<protocol::KeeperReply> call(const protocol::KeeperRequest& request, const std::vector<int>& fds,
                                     std::vector<sys::KeptDescriptor>* kept);

  const std::string path_;
  std::mutex mutex_;  // guards connection_ for the length of a call: its purpose is to make them take turns
  sys::Fd connection_;
};

// Finds the keeper of a data directory, or starts one; it lives on when this
// process dies. Blocks until it answers.
Result<std::unique_ptr<KeeperClient>> start_or_find_keeper(const KeeperStart& start, Deadline deadline);

}  // namespace dsec::backend
