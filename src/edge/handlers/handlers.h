// The sandbox-scoped API: one function a part of /v1/sandboxes/{ref}/….
//
// Each runs as a coroutine on the event loop. An error that is returned before
// an answer was begun becomes the answer; afterwards it only ends the exchange.
#pragma once

#include <memory>
#include <optional>
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
// POST …/pause and …/resume.
asio::awaitable<Result<void>> pause(net::Exchange& exchange, SandboxRef sandbox);
asio::awaitable<Result<void>> resume(net::Exchange& exchange, SandboxRef sandbox);
// X-Dsec-Fence; kInvalidArgument for one that is no number.
Result<std::optional<std::uint64_t>> fence_of(const net::HttpRequest& request);
// False: a higher one has been seen, and the answer is fenced_response(). `raises`: it is the highest from now on.
Result<bool> pass_fence(const net::HttpRequest& request, LiveSandbox& sandbox, bool raises);
net::HttpResponse fenced_response(const LiveSandbox& sandbox);
// Before what needs the payload.
asio::awaitable<Result<void>> wake(const net::HttpRequest& request, SandboxRef sandbox, std::optional<Duration> within = {});
asio::awaitable<Result<void>> stats(net::Exchange& exchange, SandboxRef sandbox);
asio::awaitable<Result<void>> events(net::Exchange& exchange, SandboxRef sandbox);
asio::awaitable<Result<void>> exec(net::Exchange& exchange, SandboxRef sandbox, Segments rest);
asio::awaitable<Result<void>> exec_stream(net::Exchange& exchange, SandboxRef sandbox);
asio::awaitable<Result<void>> sessions(net::Exchange& exchange, SandboxRef sandbox, Segments rest);
asio::awaitable<Result<void>> files(net::Exchange& exchange, SandboxRef sandbox, Segments rest);
asio::awaitable<Result<void>> port_path(net::Exchange& exchange, SandboxRef sandbox, Segments rest);
asio::awaitable<Result<void>> port_host(net::Exchange& exchange, SandboxRef sandbox, std::uint16_t port);

}  // namespace dsec::edge::handlers
