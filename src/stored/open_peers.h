// From what is configured of other nodes to what asks them and what they ask.
#pragma once

#include <memory>

#include "origin/peer_origin.h"
#include "stored/config.h"
#include "stored/server.h"

namespace dsec::stored {

// In front of `store`, or nullptr where no peers are asked; fills in what the
// options say of peers. A configuration that does not hold (any more) is logged and
// costs what peers would give, no read.
std::unique_ptr<origin::PeerOrigin> open_peers(const Config& config, origin::Origin& store, ServerOptions& options);

}  // namespace dsec::stored
