// PlainBackend: the agent as an ordinary process, for tests and for work
// without root. Nothing is isolated and no limit holds: it says so in its
// capabilities, and doctor shows it.
//
// What the contract asks for and a plain process has not is done in the small:
// kill() of an operation ends every command of the instance, freeze() stops
// them by signal, ports are the host's own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace dsec::backend::fake {

class PlainBackend final : public Backend {
 public:
  struct Options {
    std::string agent;      // path of dsec-agent
    std::string directory;  // for agent sockets; made when missing, short enough for a unix address
  };
  static Result<std::unique_ptr<PlainBackend>> create(Options options);

  Capabilities capabilities() const override;
  Result<std::unique_ptr<Instance>> launch(const LaunchSpec& spec, const Rootfs& rootfs, Deadline deadline) override;
  Result<std::unique_ptr<Instance>> adopt(const std::string& record) override;
  Result<std::size_t> sweep(const std::vector<std::string>& records) override;

 private:
  explicit PlainBackend(Options options) : options_(std::move(options)) {}

  const Options options_;
};

}  // namespace dsec::backend::fake
