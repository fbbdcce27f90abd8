// The way out of a worker that pulls: to the registries that the operator allows, and
// to nothing else.
//
// The worker has a network namespace of its own with loopback alone, and a hosts
// file that gives each allowed host an address there. On these this process listens
// and passes bytes on, to what its own resolver says the host is. So neither a
// redirect nor a name nor an address that an image's server makes up leads anywhere.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "image/registry_reference.h"
#include "sys/fd.h"

namespace dsec::image {

// Connects to a host by name or address, under the node's own rules. Blocks until `by`.
using RegistryDial = std::function<Result<sys::Fd>(const AllowedRegistry& host, Deadline by)>;

class RegistryGate {
 public:
  struct Options {
    std::vector<AllowedRegistry> allowed;
    RegistryDial dial;
    std::string authorities = {};  // PEM; who may vouch for registries besides the system's
    std::chrono::milliseconds idle_limit{60'000};  // a connection on which nothing moves is cut
  };
  explicit RegistryGate(Options options);
  ~RegistryGate();
  RegistryGate(const RegistryGate&) = delete;
  RegistryGate& operator=(const RegistryGate&) = delete;

  // What the worker's hosts file has to say.
  std::string hosts() const;
  // What has come from registries so far. Any thread.
  std::uint64_t received_bytes() const { return received_; }
  // Listens in the network namespace of process `pid`, which has just been made. Once.
  Result<void> open(int pid);

 private:
  std::string address_of(const AllowedRegistry& host) const;
  Result<void> listen_inside(int network_namespace);
  void serve();
  void carry(sys::Fd client, const AllowedRegistry& to);

  const Options options_;
  std::map<std::string, std::string> addresses_;  // by host
  std::vector<sys::Fd> listeners_;                // in the order of options_.allowed
  sys::Fd stop_;                                  // an eventfd
  std::atomic<std::uint64_t> received_{0};
  std::thread server_;
  std::vector<std::thread> connections_;          // the server's alone
};

}  // namespace dsec::image
