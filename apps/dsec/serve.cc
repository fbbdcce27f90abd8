#include "serve.h"

#include <sys/file.h>
#include <sys/resource.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include "apiserver/api_server.h"
#include "backend/container/container_backend.h"
#include "backend/keeper_client.h"
#include "edge/upper_pool.h"
#include "gateway.h"
#include "net/authorities.h"
#include "net/http_server.h"
#include "openapi_text.h"
#include "registry_dial.h"
#include "serve_options.h"
#include "store_access.h"
#include "store/sqlite_store.h"
#include "stored/fault_reader.h"
#include "sys/file.h"
#include "sys/node_memory.h"
#include "sys/swap.h"

namespace dsec {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;

constexpr auto kDrain = std::chrono::seconds(10);
constexpr auto kCollectEvery = std::chrono::hours(1);

// dsec finds the other programs beside itself or in ../libexec/dsec.
Result<std::string> helper_directory() {
  std::error_code failed;
  const fs::path self = fs::read_symlink("/proc/self/exe", failed);
  if (failed) return Error(ErrorCode::kInternal, "where this program lies is unknown");
  for (const fs::path& directory : {self.parent_path(), self.parent_path().parent_path() / "libexec" / "dsec"})
    if (fs::exists(directory / "dsec-spawner", failed)) return directory.string();
  return Error(ErrorCode::kNotFound, "dsec-spawner lies neither beside dsec nor in ../libexec/dsec");
}

// One serve for each data directory, for as long as the descriptor lives.
Result<sys::Fd> lock_data_directory(const std::string& directory) {
  DSEC_TRY(sys::make_directories(directory, 0700));
  DSEC_ASSIGN(sys::Fd lock, sys::open_at(AT_FDCWD, directory + "/serve.lock", O_RDWR | O_CREAT, 0600));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return Error(ErrorCode::kConflict, "another dsec serve runs on " + directory);
  return lock;
}

std::string swap_directory(const std::string& data_dir) { return data_dir + "/swap"; }

// What kernel, edge and agents need; nothing where the kernel does not tell.
std::uint64_t usual_reserve_mb(const std::string& proc) {
  const Result<sys::NodeMemory> node = sys::read_node_memory(proc);
  return node.ok() ? std::clamp<std::uint64_t>((node->total_bytes >> 20) / 16, 256, 2048) : 0;
}

// Each sandbox takes up to eight descriptors here, and what is left has to do for clients, files and the store.
std::size_t most_sandboxes(std::size_t usual) {
  constexpr rlim_t kOwn = 1024, kOfOne = 8;
  struct rlimit files {};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return usual;
  files.rlim_cur = files.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &files);  // up to the hard limit anybody may
  const std::size_t room = files.rlim_cur > kOwn ? static_cast<std::size_t>((files.rlim_cur - kOwn) / kOfOne) : 1;
  if (room < usual) log_warning("this process may open too few files for more sandboxes", {{"sandboxes", std::to_string(room)}, {"files", std::to_string(files.rlim_cur)}});
  return std::min(usual, room);
}

Result<void> open_swap(const ServeOptions& options) {
  if (options.swap_zram_mb == 0 && options.swap_file_mb == 0) return {};
  DSEC_ASSIGN(const std::vector<std::string> notes,
              sys::switch_swap_on({options.swap_zram_mb << 20, options.swap_file_mb << 20, swap_directory(options.data_dir)}).within("swap"));
  for (const std::string& note : notes) log_warning("swap is not as asked for", {{"why", note}});
  return {};
}

// The disk pool is made where the host can; a host that cannot still has tmpfs.
std::unique_ptr<edge::UpperPools> open_uppers(const std::string& data_dir, sys::DescriptorKeeper& keeper, edge::BtrfsUpperPool** pool) {
  Result<std::unique_ptr<edge::BtrfsUpperPool>> disk = edge::BtrfsUpperPool::open({data_dir + "/edge/pool.img"}, keeper);
  if (!disk.ok()) {
    log_warning("no disk pool: what sandboxes write stays in memory", {{"why", disk.error().message()}});
    return std::make_unique<edge::UpperPools>(nullptr, disk.error().message());
  }
  *pool = disk->get();
  return std::make_unique<edge::UpperPools>(std::move(disk).value(), "");
}

// Everything that runs while `dsec serve` does, in the order in which it is built
// up and, from last to first, taken down.
struct Node {
  ServeOptions options;
  sys::Fd lock;
  SystemClock clock;
  SystemRandom random;
  asio::io_context io{1};
  std::unique_ptr<backend::KeeperClient> keeper;
  std::unique_ptr<backend::container::ContainerBackend> containers;
  edge::BtrfsUpperPool* disk_pool = nullptr;
  std::unique_ptr<edge::UpperPools> uppers;
  std::unique_ptr<stored::OnDemand> on_demand;
  std::unique_ptr<stored::FaultReader> data_faults;
  std::unique_ptr<image::LayerStore> layers;
  SharedStore shared;
  std::unique_ptr<image::Importer> importer;
  std::unique_ptr<store::Store> store;
  std::unique_ptr<edge::SystemResolver> resolver;
  std::unique_ptr<edge::Edge> edge;
  std::unique_ptr<InProcessGateway> gateway;
  std::unique_ptr<sys::WorkerPool> imports;
  std::unique_ptr<sys::WorkerPool> pool;
  std::unique_ptr<apiserver::Catalogue> catalogue;
  std::unique_ptr<apiserver::ApiServer> api;
  std::unique_ptr<net::HttpServer> http;
  std::string admin_key;
};

Result<void> build(Node& node) {
  const std::string& data = node.options.data_dir;
  DSEC_ASSIGN(node.lock, lock_data_directory(data));
  for (const char* name : {"/edge", "/run", "/layers", "/import"}) DSEC_TRY(sys::make_directories(data + name, 0700));
  DSEC_TRY(open_swap(node.options));
  DSEC_ASSIGN(node.shared, open_shared_store(node.options));
  DSEC_ASSIGN(const std::string helpers, helper_directory());
  DSEC_ASSIGN(node.keeper, backend::start_or_find_keeper({data, helpers, node.options.use_v1}, Deadline::in(std::chrono::seconds(20))));
  DSEC_ASSIGN(node.containers, backend::container::ContainerBackend::create({data, node.options.use_v1}));
  node.uppers = open_uppers(data, *node.keeper, &node.disk_pool);
  node.on_demand = open_on_demand(node.options, *node.keeper);
  if (node.on_demand) node.data_faults = std::make_unique<stored::FaultReader>(stored::folders_of(data).state + "/faults.log");
  DSEC_ASSIGN(node.layers, image::LayerStore::open(data + "/layers", *node.keeper, node.on_demand.get()));
  DSEC_TRY(exchange_layers(node.shared, *node.layers, node.on_demand.get()));
  std::error_code failed;
  const std::string self = fs::read_symlink("/proc/self/exe", failed);
  std::string registry_ca;
  if (!node.options.registry_ca.empty()) {
    DSEC_ASSIGN(registry_ca, net::read_authorities(node.options.registry_ca).within("--registry-ca"));
  }
  DSEC_ASSIGN(node.importer, image::Importer::create({.work_directory = data + "/import",
                                                       .helper = self,
                                                       .registries = {.allowed = node.options.registries, .dial = dial_registry, .authorities = registry_ca}},
                                                      *node.layers));
  DSEC_ASSIGN(node.store, store::open_sqlite_store(data + "/dsec.db"));
  node.resolver = std::make_unique<edge::SystemResolver>();
  edge::Edge::Parts parts{node.io, node.clock, node.random, {{"container", node.containers.get()}}, node.layers.get(), *node.uppers, *node.resolver,
                          node.store.get(), node.data_faults.get(), node.importer.get()};
  edge::Edge::Options edge_options;
  edge_options.data_directory = data;
  edge_options.limits.max_live = most_sandboxes(edge_options.limits.max_live);
  edge_options.limits.memory_reserve_mb = node.options.memory_reserve_mb.value_or(usual_reserve_mb(node.options.proc));
  edge_options.limits.trim_idle = std::chrono::seconds(node.options.trim_idle_s);
  edge_options.limits.proc = node.options.proc;
  DSEC_ASSIGN(node.edge, edge::Edge::open(parts, edge_options));

  node.gateway = std::make_unique<InProcessGateway>(*node.edge);
  node.imports = std::make_unique<sys::WorkerPool>(sys::WorkerPool::Options{"import", 2, 64});
  node.pool = std::make_unique<sys::WorkerPool>(sys::WorkerPool::Options{"store", 1, 1024});
  DSEC_ASSIGN(node.catalogue, apiserver::Catalogue::open(*node.store, *node.pool, node.clock, node.random));
  DSEC_ASSIGN(node.admin_key, node.catalogue->ensure_admin_key(data + "/admin.key"));
  node.edge->set_services(node.catalogue->services());
  apiserver::ServerOptions server;
  server.hosts.listen_address = node.options.address;
  server.hosts.port_domain = node.options.port_domain;
  server.version = DSEC_VERSION;
  server.openapi_json = kOpenApiJson;
  server.build_cache_bytes = node.options.build_cache_mb << 20;
  if (node.options.gc_days != 0) server.garbage.condemn_after = std::chrono::hours(24 * node.options.gc_days);
  if (node.on_demand) server.store_stats = stored::folders_of(data).state + "/stats.json";
  if (!node.options.residue_rules.empty()) {
    DSEC_ASSIGN(server.residue, image::read_residue_rules(node.options.residue_rules));
  }
  node.api = std::make_unique<apiserver::ApiServer>(
      apiserver::ServerParts{node.io, node.clock, node.random, *node.catalogue, *node.gateway, *node.layers, *node.importer, *node.imports, *node.pool,
                              node.shared.exchange.get()}, server);
  net::HttpServer::Options http;
  http.address = node.options.address;
  http.port = node.options.port;
  DSEC_ASSIGN(node.http, net::HttpServer::listen(node.io, http, [&node](net::Exchange& exchange) { return node.api->handle(exchange); }));
  node.edge->set_platform_ports({node.http->port()});
  return {};
}

std::string url_of(const Node& node) {
  const bool v6 = node.options.address.find(':') != std::string::npos;
  return "http://" + (v6 ? "[" + node.options.address + "]" : node.options.address) + ":" + std::to_string(node.http->port());
}

Result<void> announce(const Node& node) {
  const std::string url = url_of(node);
  if (!node.options.ready_file.empty())
    DSEC_TRY(sys::replace_file(node.options.ready_file, boost::json::serialize(boost::json::object{{"url", url}, {"admin_key", node.admin_key}}) + "\n", 0600));
  log_info("ready", {{"url", url}, {"data", node.options.data_dir}, {"uppers", node.uppers->describe()}});
  log_info("to use it: export DSEC_URL=" + url + " DSEC_API_KEY=$(cat " + node.options.data_dir + "/admin.key)");
  return {};
}

asio::awaitable<void> run(Node& node, int& exit_code) {
  asio::signal_set signals(node.io, SIGTERM, SIGINT);
  // Requests wait for no recovery: a sandbox that is being taken up again says so.
  asio::co_spawn(node.io, node.edge->recover(), asio::detached);
  asio::co_spawn(node.io, node.api->keep_builds(kCollectEvery), asio::detached);
  const auto policy = node.options.gc_days != 0 ? std::optional(node.api->options.garbage) : std::nullopt;
  asio::co_spawn(node.io, node.api->collector.run(policy, kCollectEvery), asio::detached);
  if (const Result<void> announced = announce(node); !announced.ok()) {
    log_error("cannot announce", {{"error", announced.error().message()}});
    exit_code = 1;
  } else {
    boost::system::error_code failed;
    co_await signals.async_wait(asio::redirect_error(asio::use_awaitable, failed));
  }
  log_info("stopping", {{"sandboxes", node.options.stop_sandboxes ? "end" : "stay"}});
  node.api->begin_stop();
  co_await node.api->builds_over(node.clock.now() + kDrain);  // their sandboxes end with them
  node.edge->begin_stop();
  co_await node.http->drain(Deadline::in(kDrain));
  co_await node.edge->stop(node.options.stop_sandboxes ? edge::Edge::Sandboxes::kStop : edge::Edge::Sandboxes::kKeep);
  node.io.stop();
}

}  // namespace

int serve_main(int argc, char** argv) {
  for (int i = 0; i < argc; i++) {
    if (std::string_view(argv[i]) != "--help" && std::string_view(argv[i]) != "-h") continue;
    std::fputs(kServeUsage, stdout);
    return 0;
  }
  Result<ServeOptions> options = parse_serve_options(argc, argv);
  if (!options.ok()) {
    std::fprintf(stderr, "dsec serve: %s\n%s", options.error().message().c_str(), kServeUsage);
    return 2;
  }
  set_up_log("dsec", options->log_level, options->log_format);
  ::signal(SIGPIPE, SIG_IGN);
  Node node;
  node.options = std::move(options).value();
  if (const Result<void> built = build(node); !built.ok()) {
    log_error("cannot start", {{"error", built.error().message()}});
    return 1;
  }
  int exit_code = 0;
  asio::co_spawn(node.io, run(node, exit_code), asio::detached);
  node.io.run();
  node.imports.reset();  // its jobs use all the rest
  // The keeper stays for sandboxes that run on; without any it has nothing to keep.
  if ((node.options.stop_sandboxes || node.edge->live() == 0) && exit_code == 0) {
    if (node.disk_pool != nullptr) (void)node.disk_pool->release();
    node.http.reset();
    if (const Result<void> stopped = node.keeper->stop(Deadline::in(std::chrono::seconds(20))); !stopped.ok())
      log_warning("the keeper did not stop", {{"error", stopped.error().message()}});
    if (const Result<void> off = sys::switch_swap_off(swap_directory(node.options.data_dir)); !off.ok())
      log_warning("swap stays on", {{"error", off.error().message()}});
  }
  return exit_code;
}

}  // namespace dsec
