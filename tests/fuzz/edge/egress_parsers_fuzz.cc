// Whatever a sandbox can write to its egress listeners, and a hostile server's head.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "edge/egress_dns.h"
#include "edge/egress_http.h"
#include "edge/egress_tls.h"

namespace {

using namespace dsec::edge;

void require(bool holds) {
  if (!holds) __builtin_trap();
}

void read_hello(std::string_view bytes) {
  const ClientHello hello = parse_client_hello(bytes);
  require(hello.server_name.empty() || hello.state == ClientHello::State::kComplete);
  require(hello.server_name.size() <= bytes.size());
  // What is decided on a prefix stays decided.
  if (hello.state == ClientHello::State::kComplete) require(parse_client_hello(std::string(bytes) + "x").server_name == hello.server_name);
}

void read_dns(std::string_view bytes) {
  const auto query = parse_dns_query(bytes);
  if (!query) return;
  require(query->name.size() <= 255);
  IpAddress address;
  for (const std::size_t limit : {kMaxDnsUdpAnswer, kMaxDnsTcpAnswer})
    require(dns_answer(*query, DnsCode::kNoError, std::vector<IpAddress>(20, address), limit).size() <= limit);
}

void read_http(std::string_view bytes) {
  // With room for the lines that are written anew: their number is limited too.
  if (auto request = parse_proxy_request(bytes); request.ok() && !request->connect && request->fields.size() < 120) {
    // What is sent on is read the same way again: nothing hides in it.
    const std::string head = upstream_head(*request, TargetForm::kAbsolute);
    auto again = parse_proxy_request(head);
    require(again.ok());
    require(again->destination.host == request->destination.host && again->destination.port == request->destination.port);
    require(again->target == request->target && again->body.kind == request->body.kind && again->body.length == request->body.length);
    require(head.find("\r\n\r\n") + 4 == head.size());
  }
  if (auto response = parse_proxy_response(bytes, "GET"); response.ok()) {
    const std::string head = client_head(*response, true, false);
    require(head.find("\r\n\r\n") + 4 == head.size());
  }
  ChunkScanner whole;
  const std::size_t taken = whole.feed(bytes);
  require(taken <= bytes.size());
  ChunkScanner split;
  std::size_t at = 0;
  for (const char& c : bytes) at += split.feed(std::string_view(&c, 1));
  require(at == taken && split.done() == whole.done());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  read_hello(bytes);
  read_dns(bytes);
  read_http(bytes);
  return 0;
}
