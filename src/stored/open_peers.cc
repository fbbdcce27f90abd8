#include "stored/open_peers.h"

#include "base/log.h"
#include "sys/file.h"

namespace dsec::stored {

namespace {

constexpr std::size_t kMaxIndexBytes = 1 << 30;

Result<std::unique_ptr<origin::PeerOrigin>> try_open(const Config& config, origin::Origin& store, ServerOptions& options) {
  std::unique_ptr<origin::PeerOrigin> out;
  if (!config.peers.any()) return out;
  DSEC_ASSIGN(const origin::FleetKey key, origin::FleetKey::read(config.peers.key_file));
  if (!config.peers.listen.empty()) {
    DSEC_ASSIGN(auto at, parse_peer_listen(config.peers.listen));
    options.peers = PeerServing{{.address = std::move(at.first), .port = at.second, .bytes_per_second = config.peers.bytes_per_second}, key};
  }
  if (config.peers.urls.empty()) return out;
  DSEC_ASSIGN(std::vector<net::ServerAddress> addresses, origin::parse_peers(config.peers.urls));
  const auto index_of = [state = options.folders.state](const std::string& hex) -> Result<origin::ChunkIndex> {
    DSEC_ASSIGN(const std::string bytes, sys::read_file(state + "/" + hex + ".index", kMaxIndexBytes));
    return origin::ChunkIndex::parse(bytes);
  };
  out = std::make_unique<origin::PeerOrigin>(store, std::move(addresses), key, index_of);
  options.asked_peers = &out->counts();
  return out;
}

}  // namespace

std::unique_ptr<origin::PeerOrigin> open_peers(const Config& config, origin::Origin& store, ServerOptions& options) {
  auto opened = try_open(config, store, options);
  if (opened.ok()) return std::move(opened).value();
  log_error("no peers are asked, and none may ask", {{"why", opened.error().message()}});
  return nullptr;
}

}  // namespace dsec::stored
