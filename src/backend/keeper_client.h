// The way to dsec-keeper from the node's other programs.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "protocol/keeper_messages.h"
#include "sys/descriptor_keeper.h"

namespace dsec::backend {

// Finds the keeper of a run directory or starts it. Safe on any thread; a call
// is one round trip. When the keeper has died, the next call starts another and
// gives it again what this client had put and started.
class KeeperClient final : public sys::DescriptorKeeper {
 public:
  struct Options {
    std::string run_directory;  // absolute
    std::string program;        // path of dsec-keeper
  };
  struct Status {
    int pid = 0;
    std::uint32_t descriptors = 0;
    std::uint32_t program_restarts = 0;
  };

  static Result<std::unique_ptr<KeeperClient>> start_or_find(Options options);

  Result<void> put(const std::string& name, int fd) override;
  Result<std::vector<sys::KeptDescriptor>> get(const std::string& prefix) override;
  Result<void> drop(const std::string& name) override;
  // Has the keeper run a program and run it again whenever it ends. A program of
  // that name that runs already is left alone.
  Result<void> start_program(const std::string& name, const std::vector<std::string>& arguments);
  // Also brings a dead keeper and its programs back.
  Result<Status> status();
  // Ends the programs and the keeper. What it kept is closed.
  Result<void> stop();

 private:
  explicit KeeperClient(Options options) : options_(std::move(options)) {}
  struct Answer {
    std::vector<protocol::KeeperReply> replies;
    std::vector<sys::KeptDescriptor> descriptors;
  };
  Result<Answer> call(const protocol::KeeperRequest& request, int fd);
  Result<Answer> call_once(const protocol::KeeperRequest& request, int fd);
  Result<void> connect();
  Result<void> restore();

  const Options options_;
  std::mutex mutex_;  // guards all below; held for a round trip
  sys::Fd socket_;
  std::map<std::string, sys::Fd> put_;
  std::map<std::string, std::vector<std::string>> programs_;
};

}  // namespace dsec::backend
