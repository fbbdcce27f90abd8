// A command as the API shows it.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>

#include "edge/exec.h"
#include "edge/live_sandbox.h"

namespace dsec::edge {

// Up to `most` bytes of a stream from `offset`, byte-exact; empty: nothing there
// now. `offset` is moved forward over bytes that were not stored.
asio::awaitable<Result<std::string>> read_output(std::shared_ptr<LiveSandbox> sandbox, std::shared_ptr<Exec> exec,
                                                 protocol::OutputStream which, std::uint64_t& offset, std::size_t most);

// {exec_id, state, …}; of a finished command the whole result with its output.
enum class ExecDetail { kSummary, kResult };
asio::awaitable<Result<boost::json::object>> exec_json(std::shared_ptr<LiveSandbox> sandbox, std::shared_ptr<Exec> exec, ExecDetail detail);

}  // namespace dsec::edge
