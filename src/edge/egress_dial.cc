// From a destination in a request to a connected socket, and the bytes between.
#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "edge/egress_http.h"
#include "edge/egress_session.h"
#include "edge/egress_tls.h"

namespace dsec::edge {
namespace {

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr std::size_t kBuffer = 16 << 10;  // each way and tunnel
constexpr std::size_t kMaxDialled = 4;
// A TLS record header and the hello's own, for each of the records that it is spread over.
constexpr std::size_t kMaxInspected = kMaxClientHello + 4096;

tcp::endpoint endpoint_of(const IpAddress& address, std::uint16_t port) {
  if (address.is_v4()) {
    asio::ip::address_v4::bytes_type bytes;
    std::copy(address.bytes.begin() + 12, address.bytes.end(), bytes.begin());
    return {asio::ip::address_v4(bytes), port};
  }
  asio::ip::address_v6::bytes_type bytes;
  std::copy(address.bytes.begin(), address.bytes.end(), bytes.begin());
  return {asio::ip::address_v6(bytes), port};
}

asio::awaitable<bool> dial(SessionPtr session, FlowPtr flow, tcp::endpoint endpoint, Instant until) {
  boost::system::error_code ignored;
  flow->upstream.close(ignored);
  asio::steady_timer timer(session->io, until);
  timer.async_wait([flow](boost::system::error_code cancelled) {
    boost::system::error_code closing;
    if (!cancelled) flow->upstream.close(closing);
  });
  const auto [failed] = co_await flow->upstream.async_connect(endpoint, kTuple);
  timer.cancel();
  if (failed || flow->over || !flow->upstream.is_open()) co_return false;
  flow->upstream.set_option(tcp::no_delay(true), ignored);
  co_return true;
}

// Copies until the end of `from`. False when one of the two broke.
asio::awaitable<bool> pump(SessionPtr session, FlowPtr flow, tcp::socket& from, tcp::socket& to, std::uint64_t& count) {
  std::vector<char> buffer(kBuffer);
  for (;;) {
    const auto [ended, size] = co_await from.async_read_some(asio::buffer(buffer), kTuple);
    if (ended == asio::error::eof) {
      boost::system::error_code ignored;
      to.shutdown(tcp::socket::shutdown_send, ignored);
      co_return true;
    }
    if (ended) break;
    // Nothing more is read until this is written: a slow reader holds back the writer.
    const auto [failed, written] = co_await asio::async_write(to, asio::buffer(buffer.data(), size), kTuple);
    count += written;
    if (failed) break;
    flow->set_deadline(std::chrono::steady_clock::now() + session->options.idle_timeout);
  }
  flow->cut();
  co_return false;
}

struct Inspection {
  std::optional<std::string> refusal;
  bool ended = false;  // the client has closed its end
};

// Reads what the client says first until it is known whether it is TLS for the
// host that was allowed.
asio::awaitable<Inspection> inspect(FlowPtr flow, std::string& bytes) {
  const EgressDecision& decision = flow->decision;
  for (;;) {
    const ClientHello hello = parse_client_hello(bytes);
    if (hello.state == ClientHello::State::kMalformed) co_return Inspection{.refusal = "a malformed TLS ClientHello"};
    if (hello.state == ClientHello::State::kNotTls) {
      if (decision.plain_allowed) co_return Inspection{};
      co_return Inspection{.refusal = "not TLS, and no service and no rule names this port for anything else"};
    }
    if (hello.state == ClientHello::State::kComplete) {
      const Result<std::string> name = model::normal_host_name(hello.server_name);
      if (name.ok() && *name == decision.host) co_return Inspection{};
      co_return Inspection{.refusal = hello.server_name.empty() ? "a TLS ClientHello without a server name"
                                                               : "the TLS server name '" + hello.server_name.substr(0, 253) + "' is not the host that was asked for"};
    }
    if (bytes.size() >= kMaxInspected) co_return Inspection{.refusal = "a TLS ClientHello that is too long"};
    const std::size_t before = bytes.size();
    bytes.resize(before + 4096);
    const auto [ended, size] = co_await flow->client.async_read_some(asio::buffer(bytes.data() + before, 4096), kTuple);
    bytes.resize(before + size);
    if (!ended) continue;
    if (bytes.empty() || decision.plain_allowed) co_return Inspection{.ended = true};
    co_return Inspection{.refusal = "the client closed within its TLS ClientHello"};
  }
}

asio::awaitable<bool> upload(SessionPtr session, FlowPtr flow, std::string first) {
  if (!flow->decision.literal) {
    const Instant before = flow->deadline;
    if (!flow->decision.plain_allowed) flow->set_deadline(std::chrono::steady_clock::now() + session->options.header_timeout);
    const Inspection inspection = co_await inspect(flow, first);
    if (flow->over) co_return false;
    if (inspection.refusal) {
      session->tell({.kind = EgressEvent::Kind::kConnect, .host = flow->decision.host, .port = flow->destination ? flow->destination->port : std::uint16_t{0},
                     .address = flow->address ? flow->address->text() : "", .allowed = false, .reason = *inspection.refusal});
      flow->cut();
      co_return false;
    }
    flow->set_deadline(std::max(before, std::chrono::steady_clock::now() + session->options.idle_timeout));
    if (inspection.ended && first.empty()) {
      boost::system::error_code ignored;
      flow->upstream.shutdown(tcp::socket::shutdown_send, ignored);
      co_return true;
    }
  }
  if (!first.empty()) {
    const auto [failed, written] = co_await asio::async_write(flow->upstream, asio::buffer(first), kTuple);
    flow->sent += written;
    if (failed) {
      flow->cut();
      co_return false;
    }
    std::string().swap(first);
  }
  co_return co_await pump(session, flow, flow->client, flow->upstream, flow->sent);
}

asio::awaitable<bool> download(SessionPtr session, FlowPtr flow, std::string first) {
  if (!first.empty()) {
    const auto [failed, written] = co_await asio::async_write(flow->client, asio::buffer(first), kTuple);
    flow->received += written;
    if (failed) {
      flow->cut();
      co_return false;
    }
  }
  co_return co_await pump(session, flow, flow->upstream, flow->client, flow->received);
}

}  // namespace

asio::awaitable<Result<std::vector<IpAddress>>> look_up(SessionPtr session, std::string host) {
  if (session->lookups >= session->options.lookups_per_sandbox)
    co_return Error(ErrorCode::kExhausted, "too many name look-ups at once");
  ++session->lookups;
  Result<std::vector<IpAddress>> answer = co_await session->resolver.resolve(std::move(host), Deadline::in(session->options.lookup_timeout));
  --session->lookups;
  co_return answer;
}

asio::awaitable<Result<void>> open_upstream(SessionPtr session, FlowPtr flow, Destination destination, EgressEvent::Kind kind) {
  EgressEvent event{.kind = kind, .host = destination.host, .port = destination.port};
  const auto refuse = [&session, &event](std::string reason) {
    event.reason = reason;
    session->tell(event);
    return Error(ErrorCode::kPermissionDenied, std::move(reason));
  };
  const auto fail = [&session, &event](ErrorCode code, std::string reason) {
    event.reason = reason;
    session->tell(event);
    return Error(code, std::move(reason));
  };
  EgressDecision decision = session->policy->decide(destination);
  if (!decision.allowed) co_return refuse(decision.reason);
  event.host = decision.host;

  flow->set_deadline(std::chrono::steady_clock::now() + session->options.lookup_timeout + session->options.dial_timeout + session->options.header_timeout);
  std::uint16_t port = destination.port;
  std::string name = decision.host;
  std::optional<IpAddress> literal = decision.literal;
  if (!decision.via.empty()) {
    const std::size_t colon = decision.via.rfind(':');
    name = decision.via.substr(0, colon);
    port = static_cast<std::uint16_t>(std::stoi(decision.via.substr(colon + 1)));
    literal = parse_address(name);
  }
  std::vector<IpAddress> addresses;
  if (literal) {
    addresses.push_back(*literal);
  } else {
    Result<std::vector<IpAddress>> found = co_await look_up(session, name);
    if (flow->over) co_return Error(ErrorCode::kCancelled, "the connection has ended");
    if (!found.ok()) co_return fail(found.error().code(), found.error().message());
    addresses = *std::move(found);
  }

  // The policy may be another than when the look-up began.
  const auto allowed_now = [&session, &destination, &decision](const IpAddress* address) -> std::optional<std::string> {
    const EgressDecision now = session->policy->decide(destination);
    if (!now.allowed) return now.reason;
    if (now.via != decision.via) return "the policy has changed";
    if (address == nullptr || !now.via.empty()) return std::nullopt;
    return session->policy->refuse_address(now.host, destination.port, *address, session->own->get());
  };
  if (const auto reason = allowed_now(nullptr)) co_return refuse(*reason);
  std::optional<std::string> refusal;
  std::vector<IpAddress> checked;
  for (const IpAddress& address : addresses) {
    if (auto reason = allowed_now(&address)) {
      refusal = std::move(reason);
    } else if (checked.size() < kMaxDialled) {
      checked.push_back(address);
    }
  }
  if (checked.empty()) co_return refuse(refusal ? decision.host + ": " + *refusal : decision.host + " has no address");

  const Instant until = std::chrono::steady_clock::now() + session->options.dial_timeout;
  for (std::size_t i = 0; i < checked.size(); ++i) {
    const Instant now = std::chrono::steady_clock::now();
    const Instant share = i + 1 == checked.size() ? until : now + (until - now) / 2;
    const bool connected = co_await dial(session, flow, endpoint_of(checked[i], port), share);
    if (flow->over) co_return Error(ErrorCode::kCancelled, "the connection has ended");
    if (!connected) continue;
    if (const auto reason = allowed_now(&checked[i])) {
      boost::system::error_code ignored;
      flow->upstream.close(ignored);
      co_return refuse(*reason);
    }
    flow->destination = Destination{.host = decision.host, .port = destination.port};
    flow->address = checked[i];
    event.address = checked[i].text();
    event.allowed = true;
    event.reason = decision.reason;
    flow->decision = std::move(decision);
    flow->set_deadline(std::chrono::steady_clock::now() + session->options.idle_timeout);
    session->tell(event);
    co_return Result<void>();
  }
  co_return fail(ErrorCode::kUnavailable, "cannot connect to " + decision.host + ":" + std::to_string(destination.port));
}

asio::awaitable<void> run_tunnel(SessionPtr session, FlowPtr flow, std::string first, std::string first_received) {
  using namespace asio::experimental::awaitable_operators;
  co_await (upload(session, flow, std::move(first)) && download(session, flow, std::move(first_received)));
}

}  // namespace dsec::edge
