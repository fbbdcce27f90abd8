#include "stored/config.h"

#include <boost/json.hpp>

#include "sys/file.h"

namespace dsec::stored {

namespace json = boost::json;

namespace {

std::string config_path(const std::string& data_dir) { return data_dir + "/store/config.json"; }

}  // namespace

Result<void> save_config(const std::string& data_dir, const Config& config) {
  DSEC_TRY(sys::make_directories(data_dir + "/store", 0700));
  const json::object text = {{"store", config.store_url}, {"cache_bytes", config.cache_bytes}, {"traces", config.traces}};
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
  return Config{.store_url = std::string(url->get_string()), .cache_bytes = bytes, .traces = traces == nullptr || traces->get_bool()};
}

StoredFolders folders_of(const std::string& data_dir) { return {data_dir + "/store", data_dir + "/layers"}; }

}  // namespace dsec::stored
