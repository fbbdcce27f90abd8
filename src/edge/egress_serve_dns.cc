// The DNS stub: it answers for the names that the sandbox may reach, at once
// for all others, and never passes a query on.
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "edge/egress_dns.h"
#include "edge/egress_session.h"

namespace dsec::edge {
namespace {

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr auto kTcpIdle = std::chrono::seconds(10);

struct Verdict {
  DnsCode code = DnsCode::kNoSuchName;
  bool look_up = false;
  std::string name;
};

Verdict judge(const EgressSession& session, const DnsQuery& query) {
  if (query.code != DnsCode::kNoError) return {.code = query.code};
  const EgressDecision decision = session.policy->decide_name(query.name);
  if (!decision.allowed) {
    session.tell({.kind = EgressEvent::Kind::kDns, .host = query.name, .allowed = false, .reason = decision.reason});
    return {};
  }
  // Other records of an allowed name: it exists, and has none of them.
  const bool address = query.type == kDnsTypeA || query.type == kDnsTypeAaaa;
  return {.code = DnsCode::kNoError, .look_up = address, .name = decision.host};
}

asio::awaitable<std::string> answer(SessionPtr session, DnsQuery query, Verdict verdict, std::size_t limit) {
  if (!verdict.look_up) co_return dns_answer(query, verdict.code, {}, limit);
  Result<std::vector<IpAddress>> found = co_await look_up(session, verdict.name);
  if (!found.ok()) {
    const bool absent = found.error().code() == ErrorCode::kNotFound;
    session->tell({.kind = EgressEvent::Kind::kDns, .host = verdict.name, .allowed = true, .reason = found.error().message()});
    co_return dns_answer(query, absent ? DnsCode::kNoSuchName : DnsCode::kServerFailure, {}, limit);
  }
  std::vector<IpAddress> shown;
  std::string refusal;
  for (const IpAddress& address : *found) {
    if (auto reason = session->policy->refuse_address(verdict.name, 0, address, session->own->get()))
      refusal = std::move(*reason);
    else
      shown.push_back(address);
  }
  const bool allowed = !shown.empty() || refusal.empty();
  session->tell({.kind = EgressEvent::Kind::kDns, .host = verdict.name, .address = shown.empty() ? "" : shown.front().text(), .allowed = allowed, .reason = refusal});
  co_return dns_answer(query, allowed ? DnsCode::kNoError : DnsCode::kNoSuchName, shown, limit);
}

asio::awaitable<void> answer_later(SessionPtr session, DnsQuery query, Verdict verdict, udp::endpoint from) {
  const std::string bytes = co_await answer(session, std::move(query), std::move(verdict), kMaxDnsUdpAnswer);
  if (session->stopped) co_return;
  boost::system::error_code ignored;
  session->dns_udp.send_to(asio::buffer(bytes), from, 0, ignored);
}

}  // namespace

asio::awaitable<void> serve_dns_udp(SessionPtr session) {
  std::array<char, kMaxDnsQuery + 1> buffer{};
  boost::system::error_code ignored;
  session->dns_udp.non_blocking(true, ignored);  // an answer that does not fit into the socket is dropped, as on any wire
  while (!session->stopped) {
    udp::endpoint from;
    const auto [failed, size] = co_await session->dns_udp.async_receive_from(asio::buffer(buffer), from, kTuple);
    if (session->stopped || failed == asio::error::operation_aborted || failed == asio::error::bad_descriptor) co_return;
    if (failed) continue;  // an earlier answer found no reader
    const std::optional<DnsQuery> query = parse_dns_query(std::string_view(buffer.data(), size));
    if (!query) continue;
    Verdict verdict = judge(*session, *query);
    if (verdict.look_up && session->lookups >= session->options.lookups_per_sandbox) verdict = {.code = DnsCode::kServerFailure};
    if (!verdict.look_up) {
      session->dns_udp.send_to(asio::buffer(dns_answer(*query, verdict.code, {}, kMaxDnsUdpAnswer)), from, 0, ignored);
      continue;
    }
    asio::co_spawn(session->io, answer_later(session, *query, std::move(verdict), from), asio::detached);
  }
}

asio::awaitable<void> serve_dns_tcp(SessionPtr session, FlowPtr flow) {
  while (!flow->over) {
    flow->set_deadline(std::chrono::steady_clock::now() + kTcpIdle);
    std::array<unsigned char, 2> length{};
    const auto [ended, got] = co_await asio::async_read(flow->client, asio::buffer(length), kTuple);
    const std::size_t size = static_cast<std::size_t>(length[0]) << 8 | length[1];
    if (ended || got != length.size() || size > kMaxDnsQuery) co_return;
    std::string bytes(size, '\0');
    const auto [broke, read] = co_await asio::async_read(flow->client, asio::buffer(bytes), kTuple);
    if (broke || read != size) co_return;
    const std::optional<DnsQuery> query = parse_dns_query(bytes);
    if (!query) co_return;
    const std::string message = co_await answer(session, *query, judge(*session, *query), kMaxDnsTcpAnswer);
    std::string out{static_cast<char>(message.size() >> 8), static_cast<char>(message.size() & 0xff)};
    out += message;
    const auto [failed, written] = co_await asio::async_write(flow->client, asio::buffer(out), kTuple);
    if (failed || written != out.size()) co_return;
  }
}

}  // namespace dsec::edge
