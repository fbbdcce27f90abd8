// A blocking HTTP/1.1 client for one server: requests with streamed bodies both
// ways, and WebSockets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/wire.h"

namespace dsec::cli {

// The next part of a body; empty at the end.
using BodySource = std::function<Result<std::string>()>;
// Takes a part of a body.
using BodySink = std::function<Result<void>(std::string_view)>;

struct HttpCall {
  std::string method = "GET";
  std::string target;  // path and query, encoded; the address's prefix is put before it
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  BodySource body_source;             // instead of body: sent chunked
  Duration timeout = std::chrono::seconds(120);  // between two parts of the answer
};

struct HttpAnswer {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;  // unless a sink took it
  const std::string* header(std::string_view name) const;
};

std::string percent_encode(std::string_view text);  // of one path segment or query value

class HttpClient {
 public:
  HttpClient(ServerAddress address, std::string api_key);

  // Sends the call on the kept connection, or a new one. A connection that the
  // server closed meanwhile is replaced when nothing of the call was answered
  // and its body can be sent again. `sink` takes the body of a 2xx answer.
  Result<HttpAnswer> call(const HttpCall& call, const BodySink& sink = {});

  // The connection after a WebSocket upgrade. kInvalidArgument and the like, as
  // the server says, when it refuses.
  struct Upgraded {
    std::unique_ptr<Wire> wire;
    std::string already_read;
  };
  Result<Upgraded> upgrade(const std::string& target);

  const ServerAddress& address() const { return address_; }

 private:
  std::string head_of(const HttpCall& call, bool upgrade) const;
  Result<HttpAnswer> exchange(Wire& wire, const HttpCall& call, const BodySink& sink, bool* answered, bool* keep);

  const ServerAddress address_;
  const std::string api_key_;
  std::unique_ptr<Wire> kept_;
};

// The error that an answer outside 2xx means, by its JSON body.
Error error_of(const HttpAnswer& answer);

}  // namespace dsec::cli
