#include "stored/config.h"

#include <boost/json.hpp>
#include <charconv>

#include "sys/file.h"

namespace dsec::stored {

namespace json = boost::json;

namespace {

Result<PeerConfig> read_peers(const json::value& value, const std::string& path) {
  const Error wrong(ErrorCode::kDataFault, path + ": peers are not as this program writes them");
  const json::object* const peers = value.if_object();
  if (peers == nullptr) return wrong;
  PeerConfig out;
  for (const auto& [name, to] : {std::pair("urls", &out.urls), std::pair("listen", &out.listen), std::pair("key_file", &out.key_file)}) {
    const json::value* const text = peers->if_contains(name);
    if (text == nullptr || !text->is_string()) return wrong;
    *to = std::string(text->get_string());
  }
  const json::value* const rate = peers->if_contains("bytes_per_second");
  boost::system::error_code failure;
  if (rate == nullptr || !rate->is_number()) return wrong;
  out.bytes_per_second = rate->to_number<std::uint64_t>(failure);
  if (failure || out.bytes_per_second == 0) return wrong;
  return out;
}

std::string config_path(const std::string& data_dir) { return data_dir + "/store/config.json"; }

}  // namespace

Result<void> save_config(const std::string& data_dir, const Config& config) {
  DSEC_TRY(sys::make_directories(data_dir + "/store", 0700));
  json::object text = {{"store", config.store_url}, {"cache_bytes", config.cache_bytes}, {"traces", config.traces}};
  if (config.peers.any())
    text["peers"] = {{"urls", config.peers.urls}, {"listen", config.peers.listen}, {"key_file", config.peers.key_file}, {"bytes_per_second", config.peers.bytes_per_second}};
  return sys::replace_file(config_path(data_dir), json::serialize(text) + "\n", 0600);
}

Result<Config> load_config(const std::string& data_dir) {
  DSEC_ASSIGN(const std::string text, sys::read_file(config_path(data_dir)));
  boost::system::error_code failure;
  const json::value value = json::parse(text, failure);
  const json::object* found = failure ? nullptr : value.if_object();
  const json::value* url = found ? found->if_contains("store") : nullptr;
  const json::value* cache = found ? found->if_contains("cache_bytes") : nullptr;
  if (url == nullptr || !url->is_string() || cache == nullptr || !cache->is_number())
    return Error(ErrorCode::kDataFault, config_path(data_dir) + " does not say which store to use");
  const auto bytes = cache->to_number<std::uint64_t>(failure);
  if (failure) return Error(ErrorCode::kDataFault, config_path(data_dir) + ": cache_bytes is out of range");
  const json::value* traces = found->if_contains("traces");  // not in files of earlier versions
  if (traces != nullptr && !traces->is_bool()) return Error(ErrorCode::kDataFault, config_path(data_dir) + ": traces is true or false");
  Config out{.store_url = std::string(url->get_string()), .cache_bytes = bytes, .traces = traces == nullptr || traces->get_bool()};
  if (const json::value* peers = found->if_contains("peers")) {
    DSEC_ASSIGN(out.peers, read_peers(*peers, config_path(data_dir)));
  }
  return out;
}

Result<std::pair<std::string, std::uint16_t>> parse_peer_listen(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  unsigned port = 0;
  if (colon != std::string::npos) {
    const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
    if (error != std::errc() || end != text.data() + text.size()) port = 0;
  }
  if (colon == std::string::npos || colon == 0 || port == 0 || port > 65535) return invalid_argument("\"" + text + "\" is not ADDRESS:PORT");
  std::string address = text.substr(0, colon);
  if (address.starts_with('[') && address.ends_with(']')) address = address.substr(1, address.size() - 2);
  return std::pair(std::move(address), static_cast<std::uint16_t>(port));
}

StoredFolders folders_of(const std::string& data_dir) { return {data_dir + "/store", data_dir + "/layers"}; }

}  // namespace dsec::stored
