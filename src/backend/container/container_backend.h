// Containers made by dsec-spawner: the engine.
#pragma once

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <string>

#include "backend/backend.h"
#include "backend/container/instance.h"

namespace dsec::backend::container {

class ContainerBackend final : public Backend {
 public:
  struct Options {
    std::string data_dir;
    bool use_v1 = true;  // as the spawner was told
  };
  // The keeper must be running. Does not wait for the spawner.
  static Result<std::unique_ptr<ContainerBackend>> create(const Options& options);

  Capabilities capabilities() const override;
  Result<std::unique_ptr<Instance>> launch(const LaunchSpec& spec, const Rootfs& rootfs, Deadline deadline) override;
  Result<std::unique_ptr<Instance>> adopt(const std::string& record) override;
  Result<std::size_t> sweep(const std::vector<std::string>& records) override;

  // Of the last launch on this thread, for the benchmark.
  static const std::array<std::uint32_t, protocol::kLaunchSteps>& last_step_nsec();
  Result<protocol::StatusReply> spawner_status(Deadline deadline) { return shared_->spawner.status(deadline); }

 private:
  ContainerBackend(std::shared_ptr<Shared> shared, sys::CgroupHost host, std::string boot_id)
      : shared_(std::move(shared)), host_(std::move(host)), boot_id_(std::move(boot_id)) {}
  Result<sys::Fd> listen_for_agent(std::string* name);
  // Kills and releases every slot in use that is not known. `launching_` is held whole.
  Result<std::size_t> end_unknown(Deadline deadline);
  Result<LaunchResult> ask_spawner(const protocol::LaunchRequest& request, const Rootfs& rootfs, const std::string& greeting, Record& record,
                                   Deadline deadline);
  // After a launch whose reply never came. True: nothing is left of it.
  bool end_orphans(Deadline deadline);

  const std::shared_ptr<Shared> shared_;
  const sys::CgroupHost host_;
  const std::string boot_id_;
  // Shared while a launch is under way; whole while orphans are looked for, when
  // every slot in use must be known.
  std::shared_mutex launching_;
  std::atomic<bool> swept_{false};  // before that, slots of an earlier life may await adoption
};

}  // namespace dsec::backend::container
