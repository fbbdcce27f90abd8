// The arguments of `dsec serve`.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "image/registry_reference.h"

namespace dsec {

struct ServeOptions {
  std::string address = "127.0.0.1";
  std::uint16_t port = 7780;
  std::string data_dir = "/var/lib/dsec";
  std::string ready_file;
  std::string port_domain = "localhost";
  std::string store;        // address of the shared store; "" = none
  std::uint64_t store_cache_mb = 20480;  // of its data on this node; 0 = layers are copied whole
  bool store_traces = true;              // record what is read first, prefetch what others recorded
  std::string store_trust;  // file of public keys whose layers are taken from it
  std::map<std::string, std::string> sync_stores;  // further ones, by name
  unsigned gc_days = 7;  // after which an unused layer is condemned; 0: only when `dsec layer gc` is called
  std::string residue_rules;  // file of texts that no packed layer may hold; "" = none
  std::vector<image::AllowedRegistry> registries;  // that images may be pulled from
  bool stop_sandboxes = false;
  bool insecure = false;
  bool use_v1 = true;
  LogFormat log_format = LogFormat::kText;
  LogLevel log_level = LogLevel::kInfo;
};

// argv after "serve". kInvalidArgument names the argument.
Result<ServeOptions> parse_serve_options(int argc, char** argv);
extern const char kServeUsage[];

}  // namespace dsec
