// The first stream to an agent, made and written to before the agent is there.
#pragma once

#include <string>

#include "base/result.h"
#include "sys/fd.h"

namespace dsec::backend {

// Connects to the socket that the agent will accept at; `greeting` is in the stream
// when it returns. kInvalidArgument: it is larger than any socket takes at once.
Result<sys::Fd> connect_and_greet(const std::string& socket_path, const std::string& greeting);

}  // namespace dsec::backend
