#include "serve_options.h"

#include <charconv>
#include <filesystem>
#include <string_view>

#include "net/header_list.h"
#include "origin/peer_client.h"
#include "stored/config.h"

namespace dsec {

const char kServeUsage[] =
    "usage: dsec serve [--listen ADDRESS:PORT] [--data-dir DIR] [--ready-file FILE]\n"
    "                  [--store URL [--store-trust FILE] [--store-ca FILE] [--sync-store NAME=URL]...\n"
    "                   [--store-cache-mb N] [--store-traces on|off]\n"
    "                   [--peers URL,...] [--peer-listen ADDRESS:PORT] [--fleet-key FILE]\n"
    "                   [--peer-mib-per-second N]]\n"
    "                  [--allow-registry [http://]HOST[:PORT]]... [--registry-ca FILE] [--gc-days N]\n"
    "                  [--build-cache-mb N] [--residue-rules FILE]\n"
    "                  [--memory-reserve-mb N] [--trim-idle-s N]\n"
    "                  [--swap-zram-mb N] [--swap-file-mb N] [--stop-sandboxes]\n"
    "                  [--port-domain DOMAIN] [--insecure] [--no-v1]\n"
    "                  [--log-format text|json] [--log-level debug|info|warning|error]\n"
    "\n"
    "One node without configuration: http://127.0.0.1:7780, data in /var/lib/dsec.\n"
    "A stop keeps the sandboxes, and the next start takes them up again, unless\n"
    "--stop-sandboxes is given. --store is where all nodes find all layers: a\n"
    "directory (a mount of 3FS, CephFS, MooseFS, NFS) or s3://BUCKET?endpoint=URL;\n"
    "with ?at-rest=zstd, or &at-rest=zstd, data is compressed there. Layers come\n"
    "from it when a key of this node or of FILE signed them. They are read on demand,\n"
    "and N MiB (20480) of what was read stay here; 0: copied whole.\n"
    "What sandboxes read first is recorded in the store, and read ahead on nodes that\n"
    "come later, unless --store-traces off.\n"
    "Data is read from a node of --peers that has it before the store is asked; a node\n"
    "with --peer-listen gives others what it has, N MiB (64) a second at most. All of\n"
    "them have the same secret in FILE.\n"
    "Layers that nothing has held for N days (7) are removed; 0: by `dsec layer gc` alone.\n"
    "Steps of builds are remembered for 7 days after their last use, up to N MiB (20480).\n"
    "No layer is packed in which a text of --residue-rules is found: lines NAME TEXT.\n"
    "While less than N MiB of memory are available (a sixteenth of the node's, from 256\n"
    "to 2048) nothing new is taken in, and who is idle gives way, step by step; 0: never.\n"
    "With --trim-idle-s who is unused for N s gives memory back before that.\n"
    "The memory of paused sandboxes goes to swap: to what the host has, and to N MiB of\n"
    "pages compressed in memory and a file of N MiB below the data directory when\n"
    "--swap-zram-mb and --swap-file-mb say so. Both are removed when the node is stopped.\n"
    "Images are pulled from the registries that --allow-registry names, hosts that\n"
    "they redirect to included, and from no others; http:// is for one without TLS.\n"
    "--registry-ca names who may vouch for them besides the system's authorities.\n";

namespace {

Result<void> parse_listen(std::string_view text, ServeOptions& out) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) return invalid_argument("--listen: ADDRESS:PORT");
  unsigned port = 0;
  const std::string_view digits = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port > 65535) return invalid_argument("--listen: not a port: " + std::string(digits));
  std::string_view address = text.substr(0, colon);
  if (address.starts_with('[') && address.ends_with(']')) address = address.substr(1, address.size() - 2);
  out.address = std::string(address);
  out.port = static_cast<std::uint16_t>(port);
  return {};
}

Result<void> parse_mebibytes(std::string_view name, std::string_view value, std::uint64_t& out) {
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out);
  if (value.empty() || error != std::errc() || end != value.data() + value.size() || out > 1ull << 40)
    return invalid_argument(std::string(name) + ": a number of MiB");
  return {};
}

// An address that names authorities of its own keeps them. True: it is a bucket's.
bool add_authorities(std::string& url, const std::string& file) {
  if (!url.starts_with("s3://")) return false;
  if (url.find("?ca=") == std::string::npos && url.find("&ca=") == std::string::npos) url += "&ca=" + net::percent_encode(file);
  return true;
}

Result<void> apply_store_ca(ServeOptions& out) {
  if (out.store_ca.empty()) return {};
  bool any = add_authorities(out.store, out.store_ca);
  for (auto& [name, url] : out.sync_stores) any = add_authorities(url, out.store_ca) || any;
  if (!any) return invalid_argument("--store-ca is for stores that are buckets");
  return {};
}

Result<void> parse_sync_store(std::string_view text, ServeOptions& out) {
  const std::size_t equals = text.find('=');
  if (equals == 0 || equals == std::string_view::npos) return invalid_argument("--sync-store: NAME=URL");
  if (!out.sync_stores.emplace(text.substr(0, equals), text.substr(equals + 1)).second)
    return invalid_argument("--sync-store: " + std::string(text.substr(0, equals)) + " is given twice");
  return {};
}

}  // namespace

Result<ServeOptions> parse_serve_options(int argc, char** argv) {
  ServeOptions out;
  for (int i = 0; i < argc; i++) {
    std::string_view flag = argv[i];
    std::string_view value;
    bool has_value = false;
    if (const auto equals = flag.find('='); equals != std::string_view::npos) {
      value = flag.substr(equals + 1);
      flag = flag.substr(0, equals);
      has_value = true;
    }
    if (flag == "--stop-sandboxes" || flag == "--insecure" || flag == "--no-v1") {
      if (has_value) return invalid_argument(std::string(flag) + " takes no value");
      (flag == "--insecure" ? out.insecure : flag == "--no-v1" ? out.use_v1 : out.stop_sandboxes) = flag != "--no-v1";
      continue;
    }
    if (!has_value) {
      if (i + 1 >= argc) return invalid_argument("a value is missing after " + std::string(flag));
      value = argv[++i];
    }
    if (flag == "--listen") {
      DSEC_TRY(parse_listen(value, out));
    } else if (flag == "--data-dir") {
      out.data_dir = std::filesystem::absolute(std::string(value)).lexically_normal();
    } else if (flag == "--ready-file") {
      out.ready_file = std::filesystem::absolute(std::string(value));
    } else if (flag == "--store") {
      out.store = value;
    } else if (flag == "--store-cache-mb") {
      DSEC_TRY(parse_mebibytes(flag, value, out.store_cache_mb));
    } else if (flag == "--memory-reserve-mb") {
      DSEC_TRY(parse_mebibytes(flag, value, out.memory_reserve_mb.emplace()));
    } else if (flag == "--trim-idle-s") {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out.trim_idle_s);
      if (value.empty() || error != std::errc() || end != value.data() + value.size() || out.trim_idle_s > 86400) return invalid_argument("--trim-idle-s: a number of seconds, at most 86400");
    } else if (flag == "--proc") {
      out.proc = std::filesystem::absolute(std::string(value));
    } else if (flag == "--swap-zram-mb") {
      DSEC_TRY(parse_mebibytes(flag, value, out.swap_zram_mb));
    } else if (flag == "--swap-file-mb") {
      DSEC_TRY(parse_mebibytes(flag, value, out.swap_file_mb));
    } else if (flag == "--gc-days") {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out.gc_days);
      if (error != std::errc() || end != value.data() + value.size() || out.gc_days > 3650) return invalid_argument("--gc-days: a number of days, at most 3650");
    } else if (flag == "--build-cache-mb") {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out.build_cache_mb);
      if (error != std::errc() || end != value.data() + value.size() || out.build_cache_mb > 1ull << 40) return invalid_argument("--build-cache-mb: a number of MiB");
    } else if (flag == "--store-traces") {
      if (value != "on" && value != "off") return invalid_argument("--store-traces: on or off");
      out.store_traces = value == "on";
    } else if (flag == "--peers") {
      DSEC_TRY(origin::parse_peers(value).within("--peers"));
      out.peers = value;
    } else if (flag == "--peer-listen") {
      DSEC_TRY(stored::parse_peer_listen(std::string(value)).within("--peer-listen"));
      out.peer_listen = value;
    } else if (flag == "--fleet-key") {
      out.fleet_key = std::filesystem::absolute(std::string(value));
    } else if (flag == "--peer-mib-per-second") {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out.peer_mib_per_second);
      if (error != std::errc() || end != value.data() + value.size() || out.peer_mib_per_second < 1 || out.peer_mib_per_second > 1 << 20)
        return invalid_argument("--peer-mib-per-second: a number of MiB");
    } else if (flag == "--store-ca") {
      out.store_ca = std::filesystem::absolute(std::string(value));
    } else if (flag == "--store-trust") {
      out.store_trust = std::filesystem::absolute(std::string(value));
    } else if (flag == "--residue-rules") {
      out.residue_rules = std::filesystem::absolute(std::string(value));
    } else if (flag == "--sync-store") {
      DSEC_TRY(parse_sync_store(value, out));
    } else if (flag == "--allow-registry") {
      DSEC_ASSIGN(image::AllowedRegistry allowed, image::parse_allowed_registry(value));
      out.registries.push_back(std::move(allowed));
    } else if (flag == "--registry-ca") {
      out.registry_ca = std::filesystem::absolute(std::string(value));
    } else if (flag == "--port-domain") {
      out.port_domain = value;
    } else if (flag == "--log-format") {
      if (value != "text" && value != "json") return invalid_argument("--log-format: text or json");
      out.log_format = value == "json" ? LogFormat::kJson : LogFormat::kText;
    } else if (flag == "--log-level") {
      constexpr std::string_view kLevels[] = {"debug", "info", "warning", "error"};
      int level = 0;
      while (level < 4 && kLevels[level] != value) level++;
      if (level == 4) return invalid_argument("--log-level: debug, info, warning or error");
      out.log_level = static_cast<LogLevel>(level);
    } else {
      return invalid_argument("unknown argument " + std::string(flag));
    }
  }
  while (out.data_dir.size() > 1 && out.data_dir.ends_with('/')) out.data_dir.pop_back();
  if (out.store.empty() && (!out.store_trust.empty() || !out.sync_stores.empty())) return invalid_argument("--store-trust and --sync-store go with --store");
  DSEC_TRY(apply_store_ca(out));
  const bool peers = !out.peers.empty() || !out.peer_listen.empty();
  if (peers && (out.store.empty() || out.store_cache_mb == 0)) return invalid_argument("--peers and --peer-listen go with --store and its cache");
  if (peers == out.fleet_key.empty()) return invalid_argument("--fleet-key goes with --peers or --peer-listen, and they with it");
  if (!out.registry_ca.empty() && out.registries.empty()) return invalid_argument("--registry-ca goes with --allow-registry");
  const bool loopback = out.address == "::1" || out.address.starts_with("127.");
  if (!loopback && !out.insecure)
    return invalid_argument("--listen " + out.address + " is no loopback address, and this server speaks no TLS yet: put a TLS proxy before it, or say --insecure");
  return out;
}

}  // namespace dsec
