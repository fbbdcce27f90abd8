#include "edge/egress_proxy.h"

#include <ifaddrs.h>
#include <netinet/in.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstring>
#include <map>

#include "edge/egress_session.h"

namespace dsec::edge {
namespace {

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr auto kOwnAddressesKeep = std::chrono::seconds(5);
// After an accept that failed for want of descriptors: they come back when
// some flow ends, of which no event tells here.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr std::uint16_t kHttpPort = 3128;
constexpr std::uint16_t kDnsPort = 53;

using Serve = asio::awaitable<void> (*)(SessionPtr, FlowPtr);

asio::awaitable<void> watch(FlowPtr flow) {
  while (!flow->over) {
    if (std::chrono::steady_clock::now() >= flow->deadline) {
      flow->cut();
      co_return;
    }
    flow->watchdog.expires_at(flow->deadline);
    co_await flow->watchdog.async_wait(kTuple);
  }
}

asio::awaitable<void> run_flow(SessionPtr session, FlowPtr flow, Serve serve) {
  asio::co_spawn(session->io, watch(flow), asio::detached);
  co_await serve(session, flow);
  session->close_upstream(*flow);
  flow->cut();
  session->flows.erase(flow);
  session->slot_free.cancel();
}

asio::awaitable<void> accept_from(SessionPtr session, tcp::acceptor& acceptor, Serve serve) {
  while (!session->stopped) {
    // At the limit the kernel's backlog holds what comes: nothing is accepted
    // that could not be served.
    if (session->flows.size() >= session->options.connections_per_sandbox) {
      co_await session->slot_free.async_wait(kTuple);
      continue;
    }
    auto flow = std::make_shared<EgressFlow>(session->io);
    const auto [failed] = co_await acceptor.async_accept(flow->client, kTuple);
    if (session->stopped || failed == asio::error::operation_aborted || failed == asio::error::bad_descriptor) co_return;
    if (failed) {
      asio::steady_timer pause(session->io, kAcceptPause);
      co_await pause.async_wait(kTuple);
      continue;
    }
    session->flows.insert(flow);
    asio::co_spawn(session->io, run_flow(session, flow, serve), asio::detached);
  }
}

// Whether a flow that is open under the old policy may go on under this one.
bool still_allowed(const EgressPolicy& policy, const EgressFlow& flow, const NodeAddresses& own) {
  if (!flow.destination) return true;
  const EgressDecision decision = policy.decide(*flow.destination);
  if (!decision.allowed || decision.via != flow.decision.via) return false;
  return !decision.via.empty() || !flow.address || !policy.refuse_address(decision.host, flow.destination->port, *flow.address, own);
}

}  // namespace

std::string_view to_string(EgressEvent::Kind kind) {
  switch (kind) {
    case EgressEvent::Kind::kHttp: return "http";
    case EgressEvent::Kind::kConnect: return "connect";
    case EgressEvent::Kind::kDns: return "dns";
    case EgressEvent::Kind::kClosed: return "closed";
  }
  return "";
}

std::vector<backend::LoopbackListener> egress_listeners() {
  using backend::LoopbackKind;
  return {{LoopbackKind::kTcp, kHttpPort}, {LoopbackKind::kTcp, kDnsPort}, {LoopbackKind::kUdp, kDnsPort}};
}

void EgressFlow::set_deadline(Instant when) {
  const bool sooner = when < deadline;
  deadline = when;
  // A later deadline needs no wake-up now: the old one comes first and looks.
  if (sooner) watchdog.cancel();
}

void EgressFlow::cut() {
  over = true;
  boost::system::error_code ignored;
  client.close(ignored);
  upstream.close(ignored);
  watchdog.cancel();
}

const NodeAddresses& OwnAddresses::get() {
  const Instant now = std::chrono::steady_clock::now();
  if (!all_.addresses.empty() && now - read_at_ < kOwnAddressesKeep) return all_;
  if (all_.addresses.empty()) all_.addresses = fixed_;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return all_;
  all_.addresses = fixed_;
  read_at_ = now;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    IpAddress address;
    if (one->ifa_addr->sa_family == AF_INET) {
      address.bytes[10] = address.bytes[11] = 0xff;
      std::memcpy(address.bytes.data() + 12, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, 4);
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      std::memcpy(address.bytes.data(), &reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr, 16);
    } else {
      continue;
    }
    all_.addresses.push_back(address);
  }
  freeifaddrs(list);
  return all_;
}

void EgressSession::tell(EgressEvent event) const {
  if (!sink) return;
  event.time = clock.wall_now();
  event.sandbox_id = sandbox_id;
  sink(event);
}

void EgressSession::close_upstream(EgressFlow& flow) const {
  boost::system::error_code ignored;
  flow.upstream.close(ignored);
  if (!flow.destination) return;
  EgressEvent event{.kind = EgressEvent::Kind::kClosed, .host = flow.destination->host, .port = flow.destination->port, .allowed = true,
                    .reason = flow.decision.reason, .bytes_sent = flow.sent, .bytes_received = flow.received};
  if (flow.address) event.address = flow.address->text();
  flow.destination.reset();
  flow.address.reset();
  flow.sent = flow.received = 0;
  tell(std::move(event));
}

void EgressSession::stop() {
  stopped = true;
  for (const FlowPtr& flow : flows) close_upstream(*flow);
  sink = nullptr;
  boost::system::error_code ignored;
  http.close(ignored);
  dns_tcp.close(ignored);
  dns_udp.close(ignored);
  slot_free.cancel();
  for (const FlowPtr& flow : flows) flow->cut();
}

struct EgressProxy::State {
  asio::io_context& io;
  EgressResolver& resolver;
  const Clock& clock;
  Options options;
  EventSink sink;
  std::shared_ptr<OwnAddresses> own;
  std::map<std::string, SessionPtr> sessions;
};

EgressProxy::EgressProxy(asio::io_context& io, EgressResolver& resolver, const Clock& clock, Options options, EventSink sink)
    : state_(std::make_shared<State>(State{io, resolver, clock, options, std::move(sink), std::make_shared<OwnAddresses>(options.own_addresses), {}})) {}

EgressProxy::~EgressProxy() {
  for (const auto& [id, session] : state_->sessions) {
    session->sink = nullptr;  // whoever listens may be half gone
    session->stop();
  }
}

Result<void> EgressProxy::serve(const std::string& sandbox_id, std::vector<sys::Fd> listeners, EgressPolicy policy) {
  if (listeners.size() != egress_listeners().size()) return invalid_argument("egress: the backend gave other listeners than were asked for");
  auto session = std::make_shared<EgressSession>(state_->io, state_->resolver, state_->clock, state_->options);
  session->sandbox_id = sandbox_id;
  session->sink = state_->sink;
  session->own = state_->own;
  session->policy = std::make_shared<const EgressPolicy>(std::move(policy));
  boost::system::error_code failed;
  const auto adopt = [&failed](auto& socket, const auto& protocol, sys::Fd& fd) {
    if (failed) return;
    socket.assign(protocol, fd.get(), failed);
    if (!failed) static_cast<void>(fd.release());
  };
  adopt(session->http, tcp::v4(), listeners[0]);
  adopt(session->dns_tcp, tcp::v4(), listeners[1]);
  adopt(session->dns_udp, udp::v4(), listeners[2]);
  if (failed) return errno_error("egress: take a listener", failed.value());
  stop(sandbox_id);
  state_->sessions[sandbox_id] = session;
  asio::co_spawn(state_->io, accept_from(session, session->http, serve_http), asio::detached);
  asio::co_spawn(state_->io, accept_from(session, session->dns_tcp, serve_dns_tcp), asio::detached);
  asio::co_spawn(state_->io, serve_dns_udp(session), asio::detached);
  return {};
}

Result<void> EgressProxy::update(const std::string& sandbox_id, EgressPolicy policy) {
  const auto found = state_->sessions.find(sandbox_id);
  if (found == state_->sessions.end()) return Error(ErrorCode::kNotFound, "egress: sandbox " + sandbox_id + " is not served");
  EgressSession& session = *found->second;
  session.policy = std::make_shared<const EgressPolicy>(std::move(policy));
  for (const FlowPtr& flow : session.flows) {
    if (still_allowed(*session.policy, *flow, session.own->get())) continue;
    session.tell({.kind = EgressEvent::Kind::kConnect, .host = flow->destination->host, .port = flow->destination->port,
                  .address = flow->address ? flow->address->text() : "", .allowed = false, .reason = "cut: the new policy does not allow it"});
    flow->cut();
  }
  return {};
}

void EgressProxy::set_platform_ports(std::vector<std::uint16_t> ports) { state_->own->set_platform_ports(std::move(ports)); }

void EgressProxy::stop(const std::string& sandbox_id) {
  const auto found = state_->sessions.find(sandbox_id);
  if (found == state_->sessions.end()) return;
  found->second->stop();
  state_->sessions.erase(found);
}

std::size_t EgressProxy::connections(const std::string& sandbox_id) const {
  const auto found = state_->sessions.find(sandbox_id);
  return found == state_->sessions.end() ? 0 : found->second->flows.size();
}

}  // namespace dsec::edge
