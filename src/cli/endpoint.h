// Which server to talk to, and with which key: the order of libdsec's
// config.py, which says the same.
#pragma once

#include <map>
#include <string>

#include "base/result.h"

namespace dsec::cli {

struct Endpoint {
  std::string url;
  std::string api_key;  // "" = none
  std::string origin;   // for people: "DSEC_URL", "context prod", …
};

// ~/.config/dsec/config.json: what `dsec login` writes, mode 0600.
struct ClientConfig {
  std::string current;
  std::map<std::string, Endpoint> contexts;
};
std::string config_path();
Result<ClientConfig> load_config();
Result<void> save_config(const ClientConfig& config);

// Flags first, then DSEC_URL and DSEC_API_KEY, then the context, then a server
// on this machine. A context's key is only ever sent to its own address.
Result<Endpoint> find_endpoint(const std::string& url_flag, const std::string& context_flag);

}  // namespace dsec::cli
