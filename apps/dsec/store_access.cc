#include "store_access.h"

#include "base/encoding.h"
#include "base/log.h"
#include "model/builder_key.h"
#include "model/sha256.h"
#include "origin/late_origin.h"
#include "origin/open_origin.h"
#include "origin/peer_seal.h"
#include "sys/file.h"

namespace dsec {

namespace {

constexpr auto kPatience = std::chrono::seconds(20);
constexpr std::size_t kKeyLimit = 64 << 10;

Result<std::string> own_key(const std::string& path) {
  Result<std::string> key = sys::read_file(path, kKeyLimit);
  if (key.ok() || key.error().code() != ErrorCode::kNotFound) return key;
  std::string made = model::make_builder_key();
  DSEC_TRY(sys::replace_file(path, made, 0600));
  return made;
}

Result<std::vector<std::string>> trusted_keys(const std::string& own, const std::string& file) {
  std::vector<std::string> out;
  if (!file.empty()) {
    DSEC_ASSIGN(const std::string text, sys::read_file(file, kKeyLimit).within("--store-trust"));
    DSEC_ASSIGN(out, model::split_public_keys(text).within("--store-trust " + file));
  }
  DSEC_ASSIGN(std::string own_public, model::public_builder_key(own));
  out.push_back(std::move(own_public));
  return out;
}

// kNotFound: a mount that nobody has made yet.
bool is_away(ErrorCode code) { return code == ErrorCode::kUnavailable || code == ErrorCode::kDeadlineExceeded || code == ErrorCode::kNotFound; }

// A store that this node has used before may be away for now: what is cached, and
// what lies here whole, is served meanwhile.
Result<std::unique_ptr<origin::Origin>> open_own_store(const ServeOptions& options) {
  Result<std::unique_ptr<origin::Origin>> store = origin::open_origin(options.store, Deadline::in(kPatience));
  const Result<stored::Config> before = stored::load_config(options.data_dir);
  const bool known = before.ok() && before->store_url == options.store;
  if (store.ok() || !known || !is_away(store.error().code())) return std::move(store).within("--store");
  log_warning("the shared store is away; it is used as soon as it is there", {{"why", store.error().message()}});
  return std::unique_ptr<origin::Origin>(
      std::make_unique<origin::LateOrigin>(options.store, [url = options.store](Deadline deadline) { return origin::open_origin(url, deadline); }));
}

}  // namespace

std::unique_ptr<stored::OnDemand> open_on_demand(const ServeOptions& options, sys::DescriptorKeeper& keeper) {
  if (options.store.empty() || options.store_cache_mb == 0) return nullptr;
  const stored::Config config{.store_url = options.store,
                              .cache_bytes = options.store_cache_mb << 20,
                              .traces = options.store_traces,
                              .peers = {.urls = options.peers, .listen = options.peer_listen, .key_file = options.fleet_key, .bytes_per_second = options.peer_mib_per_second << 20}};
  auto started = stored::OnDemand::start(options.data_dir, config, keeper, Deadline::in(kPatience));
  if (started.ok()) return std::move(started).value();
  log_warning("layers of the shared store are copied whole before their first use", {{"why", started.error().message()}});
  return nullptr;
}

Result<SharedStore> open_shared_store(const ServeOptions& options) {
  SharedStore out;
  if (options.store.empty()) return out;
  if (!options.fleet_key.empty()) DSEC_TRY(origin::FleetKey::read(options.fleet_key));
  DSEC_ASSIGN(std::unique_ptr<origin::Origin> origin, open_own_store(options));
  out.origins.push_back(std::move(origin));
  out.rules.work_directory = options.data_dir + "/exchange";
  for (const auto& [name, url] : options.sync_stores) {
    DSEC_ASSIGN(std::unique_ptr<origin::Origin> other, origin::open_origin(url, Deadline::in(kPatience)).within("--sync-store " + name));
    out.rules.others.emplace(name, other.get());
    out.origins.push_back(std::move(other));
  }
  out.rules.lease_file = options.data_dir + "/store.lease";
  DSEC_ASSIGN(out.rules.signing_key, own_key(options.data_dir + "/store.key").within("store.key"));
  DSEC_ASSIGN(const std::string own_public, model::public_builder_key(out.rules.signing_key));
  out.rules.node = "node-" + to_hex(model::sha256(own_public)).substr(0, 32);
  DSEC_ASSIGN(out.rules.trusted_keys, trusted_keys(out.rules.signing_key, options.store_trust));
  return out;
}

Result<void> exchange_layers(SharedStore& store, image::LayerStore& layers, image::DataOnDemand* on_demand) {
  if (store.origins.empty()) return {};
  image::LayerExchange::Options rules = store.rules;
  rules.on_demand = on_demand;
  DSEC_ASSIGN(store.exchange, image::LayerExchange::create(std::move(rules), *store.origins.front(), layers));
  return {};
}

}  // namespace dsec
