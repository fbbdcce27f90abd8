// The way out of sandboxes in network mode `proxy`.
//
// The backend gives bound sockets on the sandbox's own loopback
// (Instance::listen_loopback(egress_listeners())); this class answers on them
// from the host side: an HTTP/1.1 proxy with CONNECT, and a DNS stub. The
// sandbox has no other way out, so what is not decided here does not happen.
//
// Every request is decided by name, resolved once on the host, every address is
// checked, and an address that was checked is the one that is dialled.
//
// One event loop, one thread: every method is called on it and none blocks.
// Memory is bounded for each sandbox: connections, buffers, look-ups.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/result.h"
#include "edge/egress_policy.h"
#include "edge/egress_resolver.h"
#include "sys/fd.h"

namespace dsec::edge {

struct EgressEvent {
  enum class Kind { kHttp, kConnect, kDns, kClosed };
  WallTime time;
  std::string sandbox_id;
  Kind kind = Kind::kHttp;
  std::string host;
  std::uint16_t port = 0;
  std::string address;  // dialled; "" = none
  bool allowed = false;
  std::string reason;
  std::uint64_t bytes_sent = 0;      // kClosed: out of the sandbox
  std::uint64_t bytes_received = 0;  // kClosed: into it
};
std::string_view to_string(EgressEvent::Kind kind);

// What to ask the backend for, in the order that serve() takes them.
std::vector<backend::LoopbackListener> egress_listeners();

class EgressProxy {
 public:
  struct Options {
    std::size_t connections_per_sandbox = 128;
    std::size_t lookups_per_sandbox = 32;  // at once
    std::size_t max_header_bytes = 32 << 10;
    Duration header_timeout = std::chrono::seconds(30);
    Duration dial_timeout = std::chrono::seconds(10);
    Duration lookup_timeout = std::chrono::seconds(8);
    Duration idle_timeout = std::chrono::minutes(10);
    // The node's own addresses, beside those of its interfaces.
    std::vector<IpAddress> own_addresses;
  };
  // Called on the event loop, for each decision and at the end of each flow.
  using EventSink = std::function<void(const EgressEvent&)>;

  // `io` and `resolver` outlive this object.
  EgressProxy(boost::asio::io_context& io, EgressResolver& resolver, const Clock& clock, Options options, EventSink sink);
  ~EgressProxy();
  EgressProxy(const EgressProxy&) = delete;
  EgressProxy& operator=(const EgressProxy&) = delete;

  // TCP ports of the node where the platform itself listens: no rule opens them.
  void set_platform_ports(std::vector<std::uint16_t> ports);
  // Takes the sockets of egress_listeners(). An id that is served already gets
  // the new sockets; its flows are cut.
  Result<void> serve(const std::string& sandbox_id, std::vector<sys::Fd> listeners, EgressPolicy policy);
  // Flows that the new policy does not allow are cut before this returns.
  // kNotFound for an id that is not served.
  Result<void> update(const std::string& sandbox_id, EgressPolicy policy);
  // Cuts everything. Does nothing for an id that is not served.
  void stop(const std::string& sandbox_id);
  // Open connections of a sandbox.
  std::size_t connections(const std::string& sandbox_id) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace dsec::edge
