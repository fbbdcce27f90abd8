// What `dsec serve` tells dsec-stored: a file, so that the next one knows it too.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"
#include "stored/blob_table.h"

namespace dsec::stored {

// Other nodes (origin/peer_origin.h, peer_server.h).
struct PeerConfig {
  std::string urls;        // of those that are asked, separated by commas; "" = none
  std::string listen;      // ADDRESS:PORT where others may ask; "" = nowhere
  std::string key_file;    // the fleet's key
  std::uint64_t bytes_per_second = 64 << 20;  // given to others at most
  bool any() const { return !urls.empty() || !listen.empty(); }
  bool operator==(const PeerConfig&) const = default;
};

struct Config {
  std::string store_url;
  std::uint64_t cache_bytes = 20ull << 30;
  bool traces = true;
  PeerConfig peers = {};
  bool operator==(const Config&) const = default;
};

// The port is 1 to 65535. kInvalidArgument names what is wrong.
Result<std::pair<std::string, std::uint16_t>> parse_peer_listen(const std::string& text);

// <data>/store/config.json. Holds no credentials.
Result<void> save_config(const std::string& data_dir, const Config& config);
Result<Config> load_config(const std::string& data_dir);
StoredFolders folders_of(const std::string& data_dir);

}  // namespace dsec::stored
