// The wait of an agent whose sandbox has no root filesystem yet; see
// protocol/agent_descriptors.h.
#pragma once

namespace dsec::agent {

// Waits at `fd` for the listening socket and the root, enters the root, and leaves
// the listening socket, close-on-exec, at `fd`. False: no sandbox comes of this
// process, and it is to exit.
bool await_root(int fd);

}  // namespace dsec::agent
