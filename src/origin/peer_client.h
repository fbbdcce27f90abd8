// Another node, asked for chunks that it has.
//
// GET /v1/chunks/HEX             one bit for each chunk of the data object, lowest first
// GET /v1/chunks/HEX?first=N&count=M   these chunks, one behind the other
// Both signed and sealed with the fleet's key (peer_seal.h). 404: it has not got them.
// 503: not now.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "net/blocking_client.h"
#include "origin/peer_seal.h"

namespace dsec::origin {

// Safe on any thread.
class PeerClient {
 public:
  PeerClient(net::ServerAddress address, FleetKey key, std::size_t calls = 8) : address_(std::move(address)), key_(std::move(key)), limit_(calls) {}

  // What was sealed, at most `most` bytes. kNotFound; kExhausted when it is busy, or
  // asked for enough by this node already; all else is a fault of the peer or of the way.
  Result<std::string> get(const std::string& target, std::size_t most, Deadline deadline);
  std::string name() const { return address_.authority(); }

 private:
  std::unique_ptr<net::BlockingClient> take();

  const net::ServerAddress address_;
  const FleetKey key_;
  const std::size_t limit_;
  std::mutex mutex_;  // guards what follows; never held over a call
  std::size_t in_use_ = 0;
  std::vector<std::unique_ptr<net::BlockingClient>> idle_;
};

// "http://10.0.0.7:7790,https://10.0.0.8". kInvalidArgument for what is no
// address, for a name, which no read shall wait to have looked up, and for too many.
Result<std::vector<net::ServerAddress>> parse_peers(std::string_view list);

}  // namespace dsec::origin
