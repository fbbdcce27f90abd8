// Contexts of builds: sent once, held for the builds that name them for an hour, or
// until their project has sent 32 newer ones.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "image/part_holds.h"
#include "sys/worker_pool.h"

namespace dsec::apiserver {

struct BuildContext {
  std::string project;
  std::string digest;
  std::shared_ptr<image::PartHolds> holds;
  Instant until;
};

// Event loop only. What is let go goes on the pool: its files are removed there.
class BuildContexts {
 public:
  static constexpr std::size_t kMost = 256;
  static constexpr std::size_t kMostOfAProject = 32;

  explicit BuildContexts(sys::WorkerPool& pool) : pool_(pool) {}
  // Lets go of the project's oldest when it has as many as it may. kExhausted while the
  // node has too many.
  Result<void> make_room(const std::string& project, Instant now);
  void add(std::string id, BuildContext context) { contexts_[std::move(id)] = std::move(context); }
  // kNotFound for another project's too.
  Result<BuildContext> find(const std::string& project, const std::string& id, Instant now);
  void forget_old(Instant now);
  void let_go(std::shared_ptr<image::PartHolds> holds);

 private:
  sys::WorkerPool& pool_;
  std::map<std::string, BuildContext> contexts_;
};

}  // namespace dsec::apiserver
