// The sandbox-scoped API: one function a part of /v1/sandboxes/{ref}/….
//
// Each runs as a coroutine on the event loop. An error that is returned before
// an answer was begun becomes the answer; afterwards it only ends the exchange.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "edge/live_sandbox.h"
#include "net/exchange.h"

namespace dsec::edge::handlers {

using SandboxRef = std::shared_ptr<LiveSandbox>;
using Segments = std::vector<std::string>;  // behind {ref}; the first names the part

// The query of a GET of one sandbox, for one that only the history knows.
Result<void> check_look(const net::HttpRequest& request);
// That of a DELETE: ?forget=true.
Result<bool> wants_forgetting(const net::HttpRequest& request);
asio::awaitable<Result<void>> sandbox(net::Exchange& exchange, SandboxRef sandbox);
asio::awaitable<Result<void>> stats(net::Exchange& exchange, SandboxRef sandbox);
asio::awaitable<Result<void>> events(net::Exchange& exchange, SandboxRef sandbox);
asio::awaitable<Result<void>> exec(net::Exchange& exchange, SandboxRef sandbox, Segments rest);
asio::awaitable<Result<void>> exec_stream(net::Exchange& exchange, SandboxRef sandbox);
asio::awaitable<Result<void>> sessions(net::Exchange& exchange, SandboxRef sandbox, Segments rest);
asio::awaitable<Result<void>> files(net::Exchange& exchange, SandboxRef sandbox, Segments rest);
asio::awaitable<Result<void>> port_path(net::Exchange& exchange, SandboxRef sandbox, Segments rest);
asio::awaitable<Result<void>> port_host(net::Exchange& exchange, SandboxRef sandbox, std::uint16_t port);

}  // namespace dsec::edge::handlers
