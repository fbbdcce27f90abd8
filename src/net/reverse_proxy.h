// Carries one HTTP request or upgrade into a sandbox's port and its answer out.
#pragma once

#include <string>

#include "net/exchange.h"
#include "net/header_rules.h"

namespace dsec::net {

struct ProxyOptions {
  PortAddress address = PortAddress::kPath;
  std::string target = "/";  // what the sandbox's server is asked for: path and query as sent
  std::string host;          // its Host header: "localhost:8000" or the client's own
  Duration head_timeout = std::chrono::minutes(10);  // until the answer begins; its body may take for ever
};

// `upstream` is connected to the port. Always answers: 502 for what the server
// inside does wrong, which is never the platform's fault. Memory stays bounded
// by two buffers, however slow either side is. The client's going away closes
// the upstream connection.
asio::awaitable<void> proxy_to(Exchange& exchange, sys::Fd upstream, ProxyOptions options);

// Copies both ways until both are at their end or one is broken. `first_up`
// and `first_down` are bytes that go ahead.
asio::awaitable<void> tunnel(sys::Fd client, std::string first_up, sys::Fd upstream, std::string first_down);

}  // namespace dsec::net
