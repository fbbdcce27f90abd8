#include "edge/handlers/handlers.h"

namespace dsec::edge::handlers {

// The reverse proxy is not in this tree yet.
asio::awaitable<Result<void>> port_path(net::Exchange&, SandboxRef, Segments) {
  co_return Error(ErrorCode::kUnsupported, "ports are not served yet");
}
asio::awaitable<Result<void>> port_host(net::Exchange&, SandboxRef, std::uint16_t) {
  co_return Error(ErrorCode::kUnsupported, "ports are not served yet");
}

}  // namespace dsec::edge::handlers
