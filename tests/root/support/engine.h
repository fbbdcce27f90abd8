// A whole engine for one test: keeper, spawner and backend over a data directory
// of its own, with a tiny root filesystem.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/container/container_backend.h"
#include "backend/keeper_client.h"
#include "sys/fd.h"

namespace dsec::testing {

// Where the programs of this build lie.
std::string program_dir();
// A busybox, the attacks and an empty tree around them, as an EROFS mount. Made once a process.
const sys::Fd& tiny_rootfs();
// `tree` as an EROFS mount.
sys::Fd erofs_of(const std::string& tree);
// A new directory below /tmp, removed at the end.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct EngineOptions {
  bool use_v1 = true;
  std::string agent;  // "" = the stand-in
  std::string fail_point;
  std::string ready_slots = "4";
};

class Engine {
 public:
  explicit Engine(EngineOptions options = {});
  ~Engine();

  backend::container::ContainerBackend& backend() { return *backend_; }
  backend::KeeperClient& keeper() { return *keeper_; }
  const std::string& data_dir() const { return scratch_.path(); }
  // As a second `dsec serve` would be, after the first is gone.
  void restart_backend();

  backend::LaunchSpec spec() const;
  backend::Rootfs rootfs() const;
  Result<std::unique_ptr<backend::Instance>> launch();

 private:
  EngineOptions options_;
  ScratchDirectory scratch_;
  ScratchDirectory helpers_;
  std::unique_ptr<backend::KeeperClient> keeper_;
  std::unique_ptr<backend::container::ContainerBackend> backend_;
};

Deadline soon();
// What `command` printed; "status=N" in its last line. For the stand-in agent only.
std::string run_inside(backend::Instance& instance, const std::string& command);
// True when the agent answers Hello.
bool says_hello(backend::Instance& instance);
std::size_t open_descriptors();
std::size_t mounts_here();

}  // namespace dsec::testing
