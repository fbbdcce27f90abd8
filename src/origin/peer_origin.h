// Other nodes in front of a store: chunks of a data object that one of them has
// are read there, all else in the store.
//
// A peer is trusted with nothing. What it gives is compared with the chunk index
// here, before the port's user does so again; one wrong chunk and it is not asked
// for a long time. It is asked in bounded time, and a read that peers do not satisfy
// goes to the store with most of its time left. Nothing is written to peers.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "origin/chunk_index.h"
#include "origin/origin.h"
#include "origin/peer_client.h"

namespace dsec::origin {

struct PeerRules {
  Duration ask_patience = std::chrono::milliseconds(250);  // for what a peer has
  Duration fresh = std::chrono::seconds(2);                // before it is asked for that again
  Duration read_patience = std::chrono::milliseconds(500);
  std::uint64_t slowest_bytes_per_second = 8 << 20;        // and so much longer for many bytes
  Duration all_patience = std::chrono::seconds(2);         // of one read, for all peers together
  // After a fault, doubled by each further one; the longest after a wrong byte.
  Duration least_away = std::chrono::seconds(10);
  Duration longest_away = std::chrono::minutes(10);
  Duration busy_away = std::chrono::milliseconds(100);
};

struct PeerCounts {
  std::atomic<std::uint64_t> peer_bytes{0};
  std::atomic<std::uint64_t> store_bytes{0};  // of data objects
  std::atomic<std::uint64_t> faults{0};       // peers that did not answer, or not in time
  std::atomic<std::uint64_t> wrong{0};        // answers with wrong bytes
};

class PeerOrigin final : public Origin {
 public:
  // The index of a data object, which the node believes; kNotFound: peers are not asked.
  using IndexOf = std::function<Result<ChunkIndex>(const std::string& hex)>;
  // Outlived by the store.
  PeerOrigin(Origin& store, std::vector<net::ServerAddress> peers, const FleetKey& key, IndexOf index_of, PeerRules rules = {});
  ~PeerOrigin() override;

  // Of a data object whose index is known the store is not asked before a read needs it.
  Result<std::unique_ptr<Object>> open(const ObjectName& name, Deadline deadline) override;
  Result<void> publish(const ObjectName& name, const Content& content, Deadline deadline) override { return store_.publish(name, content, deadline); }
  Result<ObjectList> list(const std::string& after, std::size_t limit, Deadline deadline) override { return store_.list(after, limit, deadline); }
  Result<void> remove(const ObjectName& name, Deadline deadline) override { return store_.remove(name, deadline); }
  Result<std::vector<Leftover>> leftovers(Deadline deadline) override { return store_.leftovers(deadline); }
  Result<void> remove_leftover(const Leftover& leftover, Deadline deadline) override { return store_.remove_leftover(leftover, deadline); }
  std::string description() const override { return store_.description() + " and peers"; }

  const PeerCounts& counts() const { return counts_; }

 private:
  friend class PeerObject;
  struct Peer;
  bool usable(const Peer& peer) const;
  // After an error of `peer`: for how long it is left alone.
  void judge(Peer& peer, const Error& error);
  void praise(Peer& peer);

  Origin& store_;
  const IndexOf index_of_;
  const PeerRules rules_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::atomic<std::size_t> turn_{0};
  PeerCounts counts_;
};

}  // namespace dsec::origin
