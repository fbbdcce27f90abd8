#include "edge/egress_dns.h"

namespace dsec::edge {
namespace {

constexpr std::size_t kHeader = 12;
constexpr std::uint16_t kClassInternet = 1;
constexpr std::uint32_t kTtlSeconds = 5;

std::uint16_t number_at(std::string_view bytes, std::size_t at) {
  return static_cast<std::uint16_t>(static_cast<unsigned char>(bytes[at]) << 8 | static_cast<unsigned char>(bytes[at + 1]));
}

void put16(std::string& out, std::uint16_t value) {
  out.push_back(static_cast<char>(value >> 8));
  out.push_back(static_cast<char>(value & 0xff));
}

}  // namespace

std::optional<DnsQuery> parse_dns_query(std::string_view bytes) {
  if (bytes.size() < kHeader) return std::nullopt;
  const auto flags = number_at(bytes, 2);
  if (flags & 0x8000) return std::nullopt;
  DnsQuery query;
  query.id = number_at(bytes, 0);
  query.recursion_desired = flags & 0x0100;
  if ((flags >> 11 & 0xf) != 0) {
    query.code = DnsCode::kNotImplemented;
    return query;
  }
  const auto malformed = [&query] {
    query.code = DnsCode::kFormatError;
    query.name.clear();
    query.question.clear();
    return query;
  };
  // Additional records (EDNS) may follow and are not read.
  if (bytes.size() > kMaxDnsQuery || number_at(bytes, 4) != 1 || number_at(bytes, 6) != 0 || number_at(bytes, 8) != 0) return malformed();

  std::size_t at = kHeader;
  for (;;) {
    if (at >= bytes.size()) return malformed();
    const auto length = static_cast<unsigned char>(bytes[at++]);
    if (length == 0) break;
    // Compression has nothing to point at in the first name.
    if (length > 63 || at + length > bytes.size() || query.name.size() + length > 253) return malformed();
    if (!query.name.empty()) query.name.push_back('.');
    for (const char c : bytes.substr(at, length)) {
      if (c <= ' ' || c == '.' || c == '\\' || c == 0x7f) return malformed();
      query.name.push_back(c);
    }
    at += length;
  }
  if (at + 4 > bytes.size()) return malformed();
  query.type = number_at(bytes, at);
  const auto question_class = number_at(bytes, at + 2);
  query.question = std::string(bytes.substr(kHeader, at + 4 - kHeader));
  if (question_class != kClassInternet) query.code = DnsCode::kNotImplemented;
  return query;
}

std::string dns_answer(const DnsQuery& query, DnsCode code, const std::vector<IpAddress>& addresses, std::size_t limit) {
  std::string records;
  std::uint16_t count = 0;
  bool truncated = false;
  if (code == DnsCode::kNoError) {
    for (const IpAddress& address : addresses) {
      if (address.is_v4() != (query.type == kDnsTypeA)) continue;
      if (query.type != kDnsTypeA && query.type != kDnsTypeAaaa) continue;
      const std::size_t size = address.is_v4() ? 4 : 16;
      if (kHeader + query.question.size() + records.size() + 12 + size > limit) {
        truncated = true;
        break;
      }
      put16(records, 0xc000 | kHeader);  // the question's name
      put16(records, query.type);
      put16(records, kClassInternet);
      put16(records, 0);
      put16(records, kTtlSeconds);
      put16(records, static_cast<std::uint16_t>(size));
      records.append(reinterpret_cast<const char*>(address.bytes.data()) + 16 - size, size);
      ++count;
    }
  }
  std::string out;
  put16(out, query.id);
  put16(out, static_cast<std::uint16_t>(0x8080 | (query.recursion_desired ? 0x0100 : 0) | (truncated ? 0x0200 : 0) | static_cast<unsigned>(code)));
  put16(out, query.question.empty() ? 0 : 1);
  put16(out, count);
  put16(out, 0);
  put16(out, 0);
  return out + query.question + records;
}

}  // namespace dsec::edge
