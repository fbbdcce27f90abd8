#include <gtest/gtest.h>

#include "edge/egress_dns.h"
#include "edge/egress_http.h"
#include "edge/egress_tls.h"

namespace dsec::edge {
namespace {

std::string counted(std::size_t width, const std::string& body) {
  std::string out;
  for (std::size_t i = width; i-- > 0;) out.push_back(static_cast<char>(body.size() >> (8 * i) & 0xff));
  return out + body;
}

std::string name_extension(const std::string& name) { return std::string("\0\0", 2) + counted(2, counted(2, std::string(1, '\0') + counted(2, name))); }

std::string hello_message(const std::string& extensions) {
  return "\x01" + counted(3, std::string("\x03\x03", 2) + std::string(32, 'r') + counted(1, "session") + counted(2, std::string("\x13\x01", 2)) +
                                 counted(1, std::string(1, '\0')) + counted(2, extensions));
}

std::string record(const std::string& fragment) { return "\x16\x03\x01" + counted(2, fragment); }

TEST(ClientHelloTest, FindsTheServerName) {
  const ClientHello hello = parse_client_hello(record(hello_message(name_extension("a.example"))));

  EXPECT_EQ(hello.state, ClientHello::State::kComplete);
  EXPECT_EQ(hello.server_name, "a.example");
}

TEST(ClientHelloTest, IsIncompleteAtEveryShorterPrefix) {
  const std::string bytes = record(hello_message(name_extension("a.example")));

  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(parse_client_hello(bytes.substr(0, size)).state, ClientHello::State::kIncomplete) << size;
}

TEST(ClientHelloTest, ReadsAHelloThatIsSpreadOverRecords) {
  std::string bytes;
  for (const char c : hello_message(name_extension("a.example"))) bytes += record(std::string(1, c));

  EXPECT_EQ(parse_client_hello(bytes).server_name, "a.example");
}

TEST(ClientHelloTest, RefusesTwoNames) {
  EXPECT_EQ(parse_client_hello(record(hello_message(name_extension("a.example") + name_extension("b.example")))).state, ClientHello::State::kMalformed);
}

TEST(ClientHelloTest, KnowsOtherProtocolsByTheirFirstByte) {
  EXPECT_EQ(parse_client_hello("SSH-2.0-x\r\n").state, ClientHello::State::kNotTls);
  EXPECT_EQ(parse_client_hello("GET / HTTP/1.1\r\n").state, ClientHello::State::kNotTls);
}

TEST(ClientHelloTest, RefusesLengthsThatDoNotFit) {
  std::string bytes = record(hello_message(name_extension("a.example")));
  bytes[bytes.size() - 10] = '\x7f';  // the name's length

  EXPECT_EQ(parse_client_hello(bytes).state, ClientHello::State::kMalformed);
  EXPECT_EQ(parse_client_hello(std::string("\x16\x03\x01\xff\xff", 5)).state, ClientHello::State::kMalformed);
  EXPECT_EQ(parse_client_hello(std::string("\x16\x03\x01\x00\x00", 5)).state, ClientHello::State::kMalformed);
}

std::string dns_question(const std::string& labels, std::uint16_t type = kDnsTypeA, std::uint16_t flags = 0x0100) {
  std::string out = "\x12\x34";
  out += static_cast<char>(flags >> 8);
  out += static_cast<char>(flags & 0xff);
  out += std::string("\0\1\0\0\0\0\0\0", 8) + labels;
  out += static_cast<char>(type >> 8);
  out += static_cast<char>(type & 0xff);
  return out + std::string("\0\1", 2);
}
const std::string kExampleLabels = std::string("\1a\7example\0", 11);

TEST(DnsTest, ReadsOneQuestion) {
  const std::optional<DnsQuery> query = parse_dns_query(dns_question(kExampleLabels));

  ASSERT_TRUE(query);
  EXPECT_EQ(query->code, DnsCode::kNoError);
  EXPECT_EQ(query->name, "a.example");
  EXPECT_EQ(query->id, 0x1234);
}

TEST(DnsTest, NeverAnswersAnAnswer) {
  EXPECT_FALSE(parse_dns_query(dns_question(kExampleLabels, kDnsTypeA, 0x8180)));
  EXPECT_FALSE(parse_dns_query("short"));
}

TEST(DnsTest, RefusesHostileNames) {
  for (const std::string& labels : {std::string("\xc0\x0c", 2), std::string("\77a", 2), std::string("\3a.b\0", 5), std::string("\2a\0\0", 4),
                                    std::string("\100") + std::string(64, 'a') + std::string(1, '\0')}) {
    const std::optional<DnsQuery> query = parse_dns_query(dns_question(labels));
    ASSERT_TRUE(query);
    EXPECT_EQ(query->code, DnsCode::kFormatError);
  }
  std::string endless;
  for (int i = 0; i < 100; ++i) endless += "\1a\1b";
  EXPECT_EQ(parse_dns_query(dns_question(endless + std::string(1, '\0')))->code, DnsCode::kFormatError);
}

TEST(DnsTest, GivesACodeForEveryPrefixAndEveryFlippedByte) {
  const std::string bytes = dns_question(kExampleLabels);

  for (std::size_t size = 12; size < bytes.size(); ++size) EXPECT_EQ(parse_dns_query(bytes.substr(0, size))->code, DnsCode::kFormatError) << size;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(~flipped[at]);
    if (const auto query = parse_dns_query(flipped)) {
      EXPECT_LE(dns_answer(*query, DnsCode::kNoError, {*parse_address("192.0.2.1")}, kMaxDnsUdpAnswer).size(), kMaxDnsUdpAnswer);
    }
  }
}

TEST(DnsTest, MarksAnAnswerThatDoesNotFit) {
  const DnsQuery query = *parse_dns_query(dns_question(kExampleLabels, kDnsTypeAaaa));
  const std::vector<IpAddress> many(64, *parse_address("2001:db8::1"));

  const std::string answer = dns_answer(query, DnsCode::kNoError, many, kMaxDnsUdpAnswer);

  EXPECT_LE(answer.size(), kMaxDnsUdpAnswer);
  EXPECT_TRUE(answer[2] & 0x02);
}

Result<ProxyRequest> request(const std::string& head) { return parse_proxy_request(head + "\r\n\r\n"); }

TEST(ProxyRequestTest, TakesAnAbsoluteTargetAndStripsWhatIsHopByHop) {
  const ProxyRequest parsed = request(
      "GET http://A.example:8080/x?y=1 HTTP/1.1\r\nHost: a.example:8080\r\nProxy-Authorization: Basic c2VjcmV0\r\nConnection: keep-alive, X-Hop\r\n"
      "X-Hop: 1\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\nTE: trailers\r\nAccept: */*").value();

  EXPECT_EQ(parsed.destination.host, "A.example");
  EXPECT_EQ(parsed.destination.port, 8080);
  EXPECT_EQ(parsed.target, "/x?y=1");
  EXPECT_EQ(parsed.fields, (HttpFields{{"Accept", "*/*"}}));
  EXPECT_EQ(upstream_head(parsed, TargetForm::kOrigin), "GET /x?y=1 HTTP/1.1\r\nHost: A.example:8080\r\nAccept: */*\r\nConnection: close\r\n\r\n");
}

TEST(ProxyRequestTest, RefusesWhatTwoProgramsCouldReadDifferently) {
  const std::string good = "POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\n";
  ASSERT_TRUE(request(good + "Content-Length: 3").ok());
  for (const char* line : {"Host: b.example", "Content-Length: 3\r\nContent-Length: 3", "Content-Length: +3", "Content-Length: 3, 3", "Content-Length:",
                           "Content-Length: 3\r\nTransfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: xchunked",
                           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", " folded: x", "X : y", "X\ty", "X: a\nY: b", "X: a\rb", "Expect: other"})
    EXPECT_FALSE(request(good + line).ok()) << line;
}

TEST(ProxyRequestTest, RefusesAHostThatIsNotTheTargets) {
  for (const char* head : {"GET http://a.example/ HTTP/1.1\r\nHost: b.example", "GET http://a.example/ HTTP/1.1\r\nHost: a.example:81",
                           "GET http://a.example/ HTTP/1.1", "CONNECT a.example:443 HTTP/1.1\r\nHost: b.example:443"})
    EXPECT_FALSE(request(head).ok()) << head;
}

TEST(ProxyRequestTest, RefusesOtherTargets) {
  for (const char* line : {"GET / HTTP/1.1", "GET https://a.example/ HTTP/1.1", "GET ftp://a.example/ HTTP/1.1", "GET http://u:p@a.example/ HTTP/1.1",
                           "GET http:///x HTTP/1.1", "GET http://a.example:0/ HTTP/1.1", "GET http://a.example:99999/ HTTP/1.1", "GET http://a.example/ HTTP/2",
                           "GET  http://a.example/ HTTP/1.1", "CONNECT a.example HTTP/1.1", "CONNECT [::1:443 HTTP/1.1", "GET http://a.example/#f HTTP/1.1"})
    EXPECT_FALSE(request(std::string(line) + "\r\nHost: a.example").ok()) << line;
}

TEST(ProxyResponseTest, KnowsHowTheBodyEnds) {
  const auto kind = [](const std::string& head, std::string_view method) { return parse_proxy_response(head + "\r\n\r\n", method).value().body.kind; };

  EXPECT_EQ(kind("HTTP/1.1 200 OK\r\nContent-Length: 3", "GET"), HttpFraming::Kind::kLength);
  EXPECT_EQ(kind("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", "GET"), HttpFraming::Kind::kChunked);
  EXPECT_EQ(kind("HTTP/1.1 200", "GET"), HttpFraming::Kind::kUntilClose);
  EXPECT_EQ(kind("HTTP/1.1 200 OK\r\nContent-Length: 3", "HEAD"), HttpFraming::Kind::kNone);
  EXPECT_EQ(kind("HTTP/1.1 304 Not Modified\r\nContent-Length: 3", "GET"), HttpFraming::Kind::kNone);
}

TEST(ChunkScannerTest, FindsTheEndHoweverTheBytesCome) {
  const std::string body = "4;name=x\r\nWiki\r\n5\r\npedia\r\n0\r\nTrailer: 1\r\n\r\n";

  for (std::size_t step = 1; step <= body.size(); ++step) {
    ChunkScanner scanner;
    const std::string bytes = body + "GET";
    std::size_t at = 0;
    while (!scanner.done() && at < bytes.size()) at += scanner.feed(std::string_view(bytes).substr(at, step));
    EXPECT_EQ(at, body.size()) << step;
  }
}

TEST(ChunkScannerTest, RefusesLooseSpellings) {
  for (const char* body : {"\r\n", "4\nWiki", "4 \r\nWiki", "0x4\r\n", "-4\r\n", "4\r\nWikiX", "FFFFFFFFFFFFFFFF\r\n", "0\r\nA: b\nC", "0\r\n\n"}) {
    ChunkScanner scanner;
    scanner.feed(body);
    EXPECT_TRUE(scanner.broken()) << body;
  }
}

}  // namespace
}  // namespace dsec::edge
