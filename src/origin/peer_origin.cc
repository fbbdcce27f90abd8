#include "origin/peer_origin.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "base/log.h"
#include "origin/publish_rules.h"

namespace dsec::origin {

namespace {
Instant now() { return std::chrono::steady_clock::now(); }
}  // namespace

struct PeerOrigin::Peer {
  explicit Peer(net::ServerAddress address, const FleetKey& key) : client(std::move(address), key) {}
  PeerClient client;
  mutable std::mutex mutex;  // guards what follows
  Instant away_until{};
  Duration next_away{};
};

// What peers have of one object, and the object in the store once it is needed.
class PeerObject final : public Object {
 public:
  PeerObject(PeerOrigin& origin, ObjectName name, ChunkIndex index)
      : origin_(origin), name_(std::move(name)), index_(std::move(index)), held_(origin.peers_.size()) {}

  std::uint64_t size() const override { return index_.object_bytes(); }

  Result<Buffer> read(std::uint64_t offset, std::size_t length, Deadline deadline) const override {
    DSEC_TRY(check_range(size(), offset, length));
    const bool whole_chunks = offset % ChunkIndex::kChunkBytes == 0 && (length % ChunkIndex::kChunkBytes == 0 || offset + length == size());
    Buffer out(length);
    if (!whole_chunks || length == 0) {
      DSEC_TRY(read_store(offset, length, out.data(), deadline));
      return out;
    }
    const Run all{offset / ChunkIndex::kChunkBytes, (length + ChunkIndex::kChunkBytes - 1) / ChunkIndex::kChunkBytes};
    const Deadline for_peers = Deadline::at(std::min(deadline.when(), now() + origin_.rules_.all_patience));
    DSEC_TRY(read_chunks(all, out.data(), for_peers, deadline));
    return out;
  }

 private:
  struct Run {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  };
  struct Held {
    Instant asked{};
    bool asking = false;
    std::string bits;
  };

  std::uint64_t start_of(std::uint64_t chunk) const { return chunk * ChunkIndex::kChunkBytes; }
  std::size_t bytes_of(Run run) const { return start_of(run.first + run.count - 1) + index_.size_of(run.first + run.count - 1) - start_of(run.first); }

  Result<void> read_chunks(Run all, char* out, Deadline for_peers, Deadline deadline) const {
    std::set<std::size_t> useless;  // in this read
    const std::uint64_t end = all.first + all.count;
    for (std::uint64_t at = all.first; at < end;) {
      char* const to = out + (start_of(at) - start_of(all.first));
      const Choice choice = for_peers.passed() ? Choice{} : choose(at, end, useless, for_peers);
      const Run run{at, choice.peer ? choice.count : up_to_next_peer(at, end, useless, for_peers)};
      if (!choice.peer) {
        DSEC_TRY(read_store(start_of(at), bytes_of(run), to, deadline));
      } else if (!read_peer(*choice.peer, run, to, for_peers)) {
        useless.insert(*choice.peer);
        continue;
      }
      at += run.count;
    }
    return {};
  }

  struct Choice {
    std::optional<std::size_t> peer;
    std::uint64_t count = 0;
  };

  // The peer that has most of what begins at `at`. Asks those whose word is old.
  Choice choose(std::uint64_t at, std::uint64_t end, const std::set<std::size_t>& useless, Deadline for_peers) const {
    Choice out;
    const std::size_t turn = origin_.turn_++;
    for (std::size_t i = 0; i < held_.size() && out.count < end - at; ++i) {
      const std::size_t peer = (turn + i) % held_.size();
      if (useless.contains(peer) || !origin_.usable(*origin_.peers_[peer])) continue;
      std::uint64_t count = held_run(peer, at, end);
      if (count == 0 && !for_peers.passed() && ask(peer, for_peers)) count = held_run(peer, at, end);
      if (count > out.count) out = {peer, count};
    }
    return out;
  }

  std::uint64_t up_to_next_peer(std::uint64_t at, std::uint64_t end, const std::set<std::size_t>& useless, Deadline for_peers) const {
    std::uint64_t count = 1;
    if (for_peers.passed()) return end - at;
    for (; at + count < end; ++count)
      for (std::size_t peer = 0; peer < held_.size(); ++peer)
        if (!useless.contains(peer) && origin_.usable(*origin_.peers_[peer]) && held_run(peer, at + count, end) > 0) return count;
    return count;
  }

  std::uint64_t held_run(std::size_t peer, std::uint64_t at, std::uint64_t end) const {
    const std::lock_guard lock(mutex_);
    const std::string& bits = held_[peer].bits;
    std::uint64_t count = 0;
    while (at + count < end && (at + count) / 8 < bits.size() && (bits[(at + count) / 8] >> ((at + count) % 8) & 1) != 0) ++count;
    return count;
  }

  // Whether its word is newer than before.
  bool ask(std::size_t peer, Deadline for_peers) const {
    {
      const std::lock_guard lock(mutex_);
      Held& held = held_[peer];
      if (held.asking || (held.asked != Instant{} && now() - held.asked < origin_.rules_.fresh)) return false;
      held.asking = true;
    }
    const Deadline deadline = Deadline::at(std::min(for_peers.when(), now() + origin_.rules_.ask_patience));
    PeerOrigin::Peer& of = *origin_.peers_[peer];
    Result<std::string> bits = of.client.get("/v1/chunks/" + name_.hex, (index_.chunks() + 7) / 8, deadline);
    if (!bits.ok()) origin_.judge(of, bits.error());
    const std::lock_guard lock(mutex_);
    Held& held = held_[peer];
    held.asking = false;
    held.asked = now();
    held.bits = bits.ok() ? std::move(bits).value() : std::string();
    return bits.ok();
  }

  void forget(std::size_t peer, Run run) const {
    const std::lock_guard lock(mutex_);
    std::string& bits = held_[peer].bits;
    for (std::uint64_t chunk = run.first; chunk < run.first + run.count && chunk / 8 < bits.size(); ++chunk)
      bits[chunk / 8] = static_cast<char>(bits[chunk / 8] & ~(1 << chunk % 8));
  }

  bool read_peer(std::size_t peer, Run run, char* out, Deadline for_peers) const {
    const std::size_t bytes = bytes_of(run);
    const Duration patience = origin_.rules_.read_patience + std::chrono::milliseconds(1000 * bytes / origin_.rules_.slowest_bytes_per_second);
    PeerOrigin::Peer& of = *origin_.peers_[peer];
    const std::string target = "/v1/chunks/" + name_.hex + "?first=" + std::to_string(run.first) + "&count=" + std::to_string(run.count);
    const Result<std::string> got = of.client.get(target, bytes, Deadline::at(std::min(for_peers.when(), now() + patience)));
    const Result<void> right = got.ok() ? check(run, *got) : Result<void>(got.error());
    if (!right.ok()) {
      forget(peer, run);
      origin_.judge(of, right.error());
      return false;
    }
    origin_.praise(of);
    origin_.counts_.peer_bytes += bytes;
    std::memcpy(out, got->data(), bytes);
    return true;
  }

  Result<void> check(Run run, std::string_view bytes) const {
    if (bytes.size() != bytes_of(run)) return Error(ErrorCode::kDataFault, "the peer gives " + std::to_string(bytes.size()) + " bytes of " + name_.hex);
    for (std::uint64_t chunk = run.first; chunk < run.first + run.count; ++chunk)
      if (!index_.fits(chunk, bytes.substr(start_of(chunk) - start_of(run.first), index_.size_of(chunk))))
        return Error(ErrorCode::kDataFault, "the peer gives other bytes for chunk " + std::to_string(chunk) + " of " + name_.hex);
    return {};
  }

  Result<void> read_store(std::uint64_t offset, std::size_t length, char* out, Deadline deadline) const {
    DSEC_ASSIGN(const std::shared_ptr<const Object> object, in_store(deadline));
    if (object->size() != size()) {
      const std::lock_guard lock(mutex_);
      if (in_store_ == object) in_store_ = nullptr;  // it may be mended
      return Error(ErrorCode::kDataFault, "it has " + std::to_string(object->size()) + " bytes instead of " + std::to_string(size()));
    }
    DSEC_ASSIGN(const Buffer got, object->read(offset, length, deadline));
    std::memcpy(out, got.data(), length);
    origin_.counts_.store_bytes += length;
    return {};
  }

  Result<std::shared_ptr<const Object>> in_store(Deadline deadline) const {
    {
      const std::lock_guard lock(mutex_);
      if (in_store_) return in_store_;
    }
    DSEC_ASSIGN(std::shared_ptr<const Object> fresh, origin_.store_.open(name_, deadline));
    const std::lock_guard lock(mutex_);
    if (!in_store_) in_store_ = fresh;
    return in_store_;
  }

  PeerOrigin& origin_;
  const ObjectName name_;
  const ChunkIndex index_;
  mutable std::mutex mutex_;  // guards what follows; never held over a call
  mutable std::vector<Held> held_;  // by peer
  mutable std::shared_ptr<const Object> in_store_;
};

PeerOrigin::PeerOrigin(Origin& store, std::vector<net::ServerAddress> peers, const FleetKey& key, IndexOf index_of, PeerRules rules)
    : store_(store), index_of_(std::move(index_of)), rules_(rules) {
  for (net::ServerAddress& address : peers) peers_.push_back(std::make_unique<Peer>(std::move(address), key));
}
PeerOrigin::~PeerOrigin() = default;

Result<std::unique_ptr<Object>> PeerOrigin::open(const ObjectName& name, Deadline deadline) {
  if (name.kind == ObjectKind::kData) {
    Result<ChunkIndex> index = index_of_(name.hex);
    if (index.ok()) return std::unique_ptr<Object>(std::make_unique<PeerObject>(*this, name, std::move(index).value()));
  }
  return store_.open(name, deadline);
}

bool PeerOrigin::usable(const Peer& peer) const {
  const std::lock_guard lock(peer.mutex);
  return now() >= peer.away_until;
}

void PeerOrigin::judge(Peer& peer, const Error& error) {
  if (error.code() == ErrorCode::kNotFound) return;
  const bool busy = error.code() == ErrorCode::kExhausted;
  const bool wrong = error.code() == ErrorCode::kDataFault;
  if (wrong) ++counts_.wrong;
  else if (!busy) ++counts_.faults;
  {
    const std::lock_guard lock(peer.mutex);
    const Instant was_away_until = peer.away_until;
    const Duration away = busy ? rules_.busy_away : wrong ? rules_.longest_away : std::max(peer.next_away, rules_.least_away);
    peer.away_until = std::max(peer.away_until, now() + away);
    if (busy || was_away_until > now()) return;  // of calls that were under way together the first one counts
    peer.next_away = std::min(away * 2, rules_.longest_away);
  }
  log_warning("a peer is left alone for a time", {{"peer", peer.client.name()}, {"why", error.message()}});
}

void PeerOrigin::praise(Peer& peer) {
  const std::lock_guard lock(peer.mutex);
  peer.next_away = Duration{};
}

}  // namespace dsec::origin
