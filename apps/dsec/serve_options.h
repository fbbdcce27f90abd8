// The arguments of `dsec serve`.
#pragma once

#include <map>
#include <optional>
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
  std::string peers;        // addresses of nodes that are asked for data before the store, by commas; "" = none
  std::string peer_listen;  // where other nodes may ask this one; "" = nowhere
  std::string fleet_key;    // file of the secret that all of them have
  std::uint64_t peer_mib_per_second = 64;  // given to other nodes at most
  std::string store_ca;     // PEM file, which the addresses of buckets name as their ca= after parsing; "" = none
  std::string store_trust;  // file of public keys whose layers are taken from it
  std::map<std::string, std::string> sync_stores;  // further ones, by name
  unsigned gc_days = 7;  // after which an unused layer is condemned; 0: only when `dsec layer gc` is called
  std::uint64_t build_cache_mb = 20480;  // steps of builds that no image has any more
  std::string residue_rules;  // file of texts that no packed layer may hold; "" = none
  std::vector<image::AllowedRegistry> registries;  // that images may be pulled from
  std::string registry_ca;    // PEM file of who may vouch for them besides the system's; "" = none
  std::optional<std::uint64_t> memory_reserve_mb;  // none: by the node's size; 0: no brake
  std::uint64_t trim_idle_s = 0;                   // who is unused for so long gives memory back; 0 = never
  std::string proc = "/proc";                      // where the node tells of its memory
  std::uint64_t swap_zram_mb = 0;  // a compressed swap device in memory, for what paused sandboxes do not need; 0 = none
  std::uint64_t swap_file_mb = 0;  // a swap file below the data directory, used when that is full; 0 = none
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
