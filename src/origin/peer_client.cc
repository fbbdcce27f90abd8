#include "origin/peer_client.h"

#include <arpa/inet.h>

#include <algorithm>

namespace dsec::origin {

namespace {

constexpr std::size_t kMostPeers = 256;

bool is_ip_address(const std::string& host) {
  unsigned char bytes[16];
  return ::inet_pton(AF_INET, host.c_str(), bytes) == 1 || ::inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

Error meaning_of(int status) {
  const std::string message = "the peer answers " + std::to_string(status);
  switch (status) {
    case 401: return Error(ErrorCode::kUnauthenticated, message + ": its key or its clock is another");
    case 404: return Error(ErrorCode::kNotFound, message);
    case 429:
    case 503: return Error(ErrorCode::kExhausted, message);
    default: return Error(ErrorCode::kUnavailable, message);
  }
}

}  // namespace

std::unique_ptr<net::BlockingClient> PeerClient::take() {
  const std::lock_guard lock(mutex_);
  if (in_use_ == limit_) return nullptr;
  ++in_use_;
  if (idle_.empty()) return std::make_unique<net::BlockingClient>(address_, net::HeaderList());
  std::unique_ptr<net::BlockingClient> kept = std::move(idle_.back());
  idle_.pop_back();
  return kept;
}

Result<std::string> PeerClient::get(const std::string& target, std::size_t most, Deadline deadline) {
  std::unique_ptr<net::BlockingClient> client = take();
  if (!client) return Error(ErrorCode::kExhausted, "enough is asked of this peer already");
  const std::string authorization = key_.sign(target, std::chrono::system_clock::now());
  const net::HttpCall call{.target = target, .headers = {{"Authorization", authorization}}, .deadline = deadline};
  std::string sealed;
  const auto keep = [&](std::string_view part) -> Result<void> {
    if (part.size() > most + FleetKey::kSealBytes - sealed.size()) return Error(ErrorCode::kDataFault, "the peer answers with more than was asked for");
    sealed += part;
    return {};
  };
  const Result<net::HttpAnswer> answer = client->call(call, keep);
  {
    const std::lock_guard lock(mutex_);
    --in_use_;
    idle_.push_back(std::move(client));
  }
  if (!answer.ok()) return answer.error();
  if (answer->status != 200) return meaning_of(answer->status);
  return key_.open(sealed, authorization);
}

Result<std::vector<net::ServerAddress>> parse_peers(std::string_view list) {
  std::vector<net::ServerAddress> out;
  while (!list.empty()) {
    const std::string_view one = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), one.size() + 1));
    DSEC_ASSIGN(net::ServerAddress address, net::parse_server_address(one));
    if (!address.prefix.empty()) return invalid_argument("a peer's address has no path: " + std::string(one));
    if (!is_ip_address(address.host)) return invalid_argument("a peer is named by its address, so that no read waits for a name server: " + std::string(one));
    out.push_back(std::move(address));
  }
  if (out.empty() || out.size() > kMostPeers) return invalid_argument("from 1 to " + std::to_string(kMostPeers) + " peers, separated by commas");
  return out;
}

}  // namespace dsec::origin
