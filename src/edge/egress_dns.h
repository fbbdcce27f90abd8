// The DNS messages of the stub: one question in, one answer out (RFC 1035).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "edge/egress_policy.h"

namespace dsec::edge {

inline constexpr std::uint16_t kDnsTypeA = 1;
inline constexpr std::uint16_t kDnsTypeAaaa = 28;
inline constexpr std::size_t kMaxDnsQuery = 1232;
inline constexpr std::size_t kMaxDnsUdpAnswer = 512;
inline constexpr std::size_t kMaxDnsTcpAnswer = 4096;

enum class DnsCode : std::uint8_t { kNoError = 0, kFormatError = 1, kServerFailure = 2, kNoSuchName = 3, kNotImplemented = 4, kRefused = 5 };

struct DnsQuery {
  std::uint16_t id = 0;
  bool recursion_desired = false;
  DnsCode code = DnsCode::kNoError;  // what is wrong with it; the rest is empty then
  std::string name;                  // dotted, as sent; labels with a dot or unprintable bytes are a format error
  std::uint16_t type = 0;
  std::string question;              // its bytes, to be repeated
};

// Nothing for what must not be answered at all: shorter than a header, or
// itself an answer (two stubs would answer one another for ever).
std::optional<DnsQuery> parse_dns_query(std::string_view bytes);

// Addresses of the other family than the question's are left out; those that do
// not fit into `limit` too, with the TC bit set.
std::string dns_answer(const DnsQuery& query, DnsCode code, const std::vector<IpAddress>& addresses, std::size_t limit);

}  // namespace dsec::edge
