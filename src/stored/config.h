// What `dsec serve` tells dsec-stored: a file, so that the next one knows it too.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "stored/blob_table.h"

namespace dsec::stored {

struct Config {
  std::string store_url;
  std::uint64_t cache_bytes = 20ull << 30;
  bool traces = true;
  bool operator==(const Config&) const = default;
};

// <data>/store/config.json. Holds no credentials.
Result<void> save_config(const std::string& data_dir, const Config& config);
Result<Config> load_config(const std::string& data_dir);
StoredFolders folders_of(const std::string& data_dir);

}  // namespace dsec::stored
