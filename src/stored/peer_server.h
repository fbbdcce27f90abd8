// Gives other nodes of the fleet chunks of data objects that are here.
//
// To whoever signs with the fleet's key, and data objects alone: their digest is
// bound to no project, and a node of the fleet may read the whole store anyway.
// Sandboxes of this node come first: connections, threads and bytes a second are
// bounded, and while readers here wait for the store others are sent away.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "origin/peer_seal.h"
#include "stored/local_chunks.h"

namespace dsec::stored {

struct PeerServerOptions {
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;  // 0 = any free one
  std::uint64_t bytes_per_second = 64 << 20;
  std::size_t connections = 256;
};

struct PeerServerCounts {
  std::atomic<std::uint64_t> bytes{0};     // given
  std::atomic<std::uint64_t> busy{0};      // requests that were sent away
  std::atomic<std::uint64_t> unsigned_{0}; // or signed with another key
};

class PeerServer {
 public:
  // Serves on threads of its own until it is destroyed. All but the key outlive it.
  static Result<std::unique_ptr<PeerServer>> start(PeerServerOptions options, origin::FleetKey key, const LocalChunks& chunks, std::function<bool()> busy);
  virtual ~PeerServer() = default;
  virtual std::uint16_t port() const = 0;
  virtual const PeerServerCounts& counts() const = 0;
};

}  // namespace dsec::stored
