// Inside of the egress proxy: one sandbox's sockets, policy and flows.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/udp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "edge/egress_proxy.h"

namespace dsec::edge {

namespace asio = boost::asio;
using asio::ip::tcp;
using asio::ip::udp;

// One connection from the sandbox, and the one that it led to. Closing its
// sockets is how a flow ends from outside: every wait of its coroutines is on
// one of them.
struct EgressFlow {
  explicit EgressFlow(asio::io_context& io) : client(io), upstream(io), watchdog(io) {}

  // The flow is cut at `when` unless the deadline moves before.
  void set_deadline(Instant when);
  void cut();

  tcp::socket client;
  tcp::socket upstream;
  asio::steady_timer watchdog;
  Instant deadline = Instant::max();
  bool over = false;

  // Set while there is an upstream.
  std::optional<Destination> destination;
  EgressDecision decision;
  std::optional<IpAddress> address;
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
};

// What leads to the node; its interfaces are read again when the last reading is older than some seconds.
class OwnAddresses {
 public:
  explicit OwnAddresses(std::vector<IpAddress> fixed) : fixed_(std::move(fixed)) {}
  const NodeAddresses& get();
  void set_platform_ports(std::vector<std::uint16_t> ports) { all_.platform_ports = std::move(ports); }

 private:
  std::vector<IpAddress> fixed_;
  NodeAddresses all_;
  Instant read_at_{};
};

struct EgressSession {
  EgressSession(asio::io_context& event_loop, EgressResolver& names, const Clock& time, const EgressProxy::Options& limits)
      : io(event_loop), resolver(names), clock(time), options(limits), http(event_loop), dns_tcp(event_loop), dns_udp(event_loop),
        slot_free(event_loop, asio::steady_timer::time_point::max()) {}

  // `sandbox_id`, the time and the sandbox are filled in.
  void tell(EgressEvent event) const;
  // Ends the flow's upstream with its kClosed event.
  void close_upstream(EgressFlow& flow) const;
  void stop();

  asio::io_context& io;
  EgressResolver& resolver;
  const Clock& clock;
  const EgressProxy::Options options;
  std::string sandbox_id;
  EgressProxy::EventSink sink;
  std::shared_ptr<OwnAddresses> own;
  std::shared_ptr<const EgressPolicy> policy;
  tcp::acceptor http;
  tcp::acceptor dns_tcp;
  udp::socket dns_udp;
  std::set<std::shared_ptr<EgressFlow>> flows;
  std::size_t lookups = 0;
  asio::steady_timer slot_free;  // never expires; cancelled when a flow ends
  bool stopped = false;
};

using SessionPtr = std::shared_ptr<EgressSession>;
using FlowPtr = std::shared_ptr<EgressFlow>;

// Resolves with the sandbox's share of look-ups.
asio::awaitable<Result<std::vector<IpAddress>>> look_up(SessionPtr session, std::string host);
// Serves one connection of the HTTP listener until it ends.
asio::awaitable<void> serve_http(SessionPtr session, FlowPtr flow);
// Decides, resolves, checks and dials; afterwards flow->upstream is connected.
// The errors are what the sandbox is told: kPermissionDenied for a refusal.
asio::awaitable<Result<void>> open_upstream(SessionPtr session, FlowPtr flow, Destination destination, EgressEvent::Kind kind);
// Carries bytes both ways until both ends have closed. `first` came from the client already.
asio::awaitable<void> run_tunnel(SessionPtr session, FlowPtr flow, std::string first, std::string first_received);
// The DNS listeners.
asio::awaitable<void> serve_dns_udp(SessionPtr session);
asio::awaitable<void> serve_dns_tcp(SessionPtr session, FlowPtr flow);

}  // namespace dsec::edge
