// HTTP/1.1 as the egress proxy reads it: strict, because what two programs read
// differently is how a second request is smuggled to a host that was not allowed.
//
// Lines end with CR LF and nothing else; no folding; one Host; one framing of
// the body. Anything else is refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "edge/egress_policy.h"

namespace dsec::edge {

// How a body ends.
struct HttpFraming {
  enum class Kind { kNone, kLength, kChunked, kUntilClose };
  Kind kind = Kind::kNone;
  std::uint64_t length = 0;
};

using HttpFields = std::vector<std::pair<std::string, std::string>>;

struct ProxyRequest {
  std::string method;
  Destination destination;
  std::string target;   // origin form: "/path?query"; "" for CONNECT
  HttpFields fields;    // end to end, without Host and framing
  HttpFraming body;
  bool connect = false;
  bool keep_alive = true;
  bool expects_continue = false;
  bool http_1_0 = false;
};

// `head` ends with the empty line. Errors are kInvalidArgument and say what is
// wrong; kUnsupported for a scheme other than http.
Result<ProxyRequest> parse_proxy_request(std::string_view head);
// The request towards the origin, or towards a parent proxy.
enum class TargetForm { kOrigin, kAbsolute };
std::string upstream_head(const ProxyRequest& request, TargetForm form);
// "example.org:443", brackets around IPv6.
std::string authority(const Destination& destination, std::uint16_t default_port);

struct ProxyResponse {
  int status = 0;
  std::string reason;
  HttpFields fields;
  HttpFraming body;
};
// `method` is the request's: HEAD and CONNECT have no body.
Result<ProxyResponse> parse_proxy_response(std::string_view head, std::string_view method);
std::string client_head(const ProxyResponse& response, bool keep_alive, bool http_1_0);

// Follows a chunked body that is passed on byte for byte.
class ChunkScanner {
 public:
  // How many of `bytes` belong to the body. After done() or broken(): 0.
  std::size_t feed(std::string_view bytes);
  bool done() const { return state_ == State::kDone; }
  bool broken() const { return state_ == State::kBroken; }

 private:
  enum class State { kSize, kExtension, kSizeLf, kData, kDataCr, kDataLf, kLineStart, kTrailer, kTrailerLf, kEndLf, kDone, kBroken };
  State step(char c);

  State state_ = State::kSize;
  std::uint64_t size_ = 0;
  std::size_t digits_ = 0;
  std::size_t control_ = 0;  // bytes of extension or trailers: bounded
};

}  // namespace dsec::edge
