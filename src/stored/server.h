// dsec-stored: serves the data of layers as files of a private filesystem, read
// from a shared store when somebody reads them.
//
// Its only client is the kernel, for EROFS mounts with `directio` above it. Being
// killed is its way to end: the keeper has the channel and starts the next one,
// which has every unanswered request repeated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "origin/chunk_reader.h"
#include "origin/origin.h"
#include "origin/peer_origin.h"
#include "stored/blob_table.h"
#include "stored/peer_server.h"
#include "stored/prefetcher.h"
#include "sys/fd.h"

namespace dsec::stored {

struct PeerServing {
  PeerServerOptions at;
  origin::FleetKey key;
};

struct ServerOptions {
  StoredFolders folders;
  std::uint64_t cache_bytes = 20ull << 30;
  std::size_t request_threads = 4;
  std::size_t fetch_threads = 16;
  origin::ReadPatience patience;
  Duration fetch_deadline = std::chrono::seconds(30);  // then whoever waits gets EIO
  Duration stall_limit = std::chrono::seconds(2);      // a read that took longer is noted
  bool traces = true;  // record what is read first, and prefetch what other nodes have recorded
  PrefetchLimits prefetch;
  std::optional<PeerServing> peers;                // other nodes may ask this one
  const origin::PeerCounts* asked_peers = nullptr;  // of the origin, when it asks others; for stats.json
};

// Returns when the filesystem is gone. In `state` it keeps faults.log
// (fault_log.h) and stats.json, renewed each second while there is something new.
// One process at a time serves a state folder: another one waits until it is gone.
Result<void> serve(const ServerOptions& options, sys::Fd channel, origin::Origin& origin);

}  // namespace dsec::stored
