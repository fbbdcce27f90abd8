// An origin in memory, for tests: the least that the port demands.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "origin/origin.h"

namespace dsec::origin {

class MemoryOrigin final : public Origin {
 public:
  Result<std::unique_ptr<Object>> open(const ObjectName& name, Deadline deadline) override;
  Result<void> publish(const ObjectName& name, const Content& content, Deadline deadline) override;
  Result<ObjectList> list(const std::string& after, std::size_t limit, Deadline deadline) override;
  Result<void> remove(const ObjectName& name, Deadline deadline) override;
  Result<std::vector<Leftover>> leftovers(Deadline deadline) override;
  Result<void> remove_leftover(const Leftover& leftover, Deadline deadline) override;
  std::string description() const override { return "memory"; }

  // As a store would that lies: other bytes below a name that is there.
  void replace(const ObjectName& name, std::string bytes);
  // As a publisher would that is killed.
  void leave(Leftover leftover);

 private:
  std::mutex mutex_;  // guards what follows
  std::map<std::string, std::shared_ptr<const std::string>> objects_;  // by path
  std::vector<Leftover> leftovers_;
};

}  // namespace dsec::origin
