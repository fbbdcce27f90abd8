// The HTTP/1.1 client of programs without an event loop: each call blocks its
// thread. One server, TCP or TLS, bodies streamed both ways, WebSockets.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "net/header_list.h"
#include "net/websocket_client.h"
#include "net/wire.h"

namespace dsec::net {

// The next part of a body; empty at the end.
using BodySource = std::function<Result<std::string>()>;
// Takes a part of a body.
using BodySink = std::function<Result<void>(std::string_view)>;

struct HttpCall {
  std::string method = "GET";
  std::string target;  // path and query, encoded; the address's prefix is put before it
  HeaderList headers;
  std::string body;
  BodySource body_source;                         // instead of body: sent chunked
  Duration timeout = std::chrono::seconds(120);  // without a byte moving either way
  std::optional<Deadline> deadline;               // of the whole call, looking the name up apart
};

struct HttpAnswer {
  int status = 0;
  HeaderList headers;
  std::string body;  // unless a sink took it
  bool success() const { return status >= 200 && status < 300; }
  const std::string* header(std::string_view name) const { return find_header(headers, name); }
};

// The error that an answer outside 2xx means, by its JSON body.
Error error_of(const HttpAnswer& answer);

class BlockingClient {
 public:
  // `headers` go with every request (Authorization).
  BlockingClient(ServerAddress address, HeaderList headers);

  // Sends the call on the kept connection, or a new one; a call that may be
  // repeated (no POST, no streamed body) is, once, when the kept one turns out
  // to be closed. `sink` takes the body of a 2xx answer, while the request's body
  // is still under way too; what it or the source returns ends the call. Any
  // other answer ends the sending.
  Result<HttpAnswer> call(const HttpCall& call, const BodySink& sink = {});
  // What the server's answer means when it refuses.
  Result<WebSocketClient> websocket(const std::string& target);

  const ServerAddress& address() const { return address_; }

 private:
  RequestHead head_of(const HttpCall& call) const;
  Result<std::unique_ptr<Wire>> connect(const std::optional<Deadline>& whole) const;

  const ServerAddress address_;
  const HeaderList headers_;
  std::unique_ptr<Wire> kept_;
};

}  // namespace dsec::net
