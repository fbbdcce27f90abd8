#include "apiserver/collector.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json/array.hpp>

#include "base/log.h"
#include "model/json.h"
#include "net/blocking.h"

namespace dsec::apiserver {
namespace json = boost::json;
namespace {

constexpr std::size_t kHoldersTold = 5;
constexpr std::size_t kObjectsTold = 10'000;

json::array told(const std::vector<std::string>& holders) {
  json::array out;
  for (std::size_t i = 0; i < holders.size() && i < kHoldersTold; i++) out.emplace_back(holders[i]);
  if (holders.size() > kHoldersTold) out.emplace_back("and " + std::to_string(holders.size() - kHoldersTold) + " more");
  return out;
}

json::object entry_of(const model::LayerRecord& layer, const image::GarbageVerdict& verdict, const std::vector<std::string>& holders) {
  json::object out{{"digest", layer.digest},
                   {"kind", std::string(model::to_string(layer.kind))},
                   {"source", layer.source},
                   {"size_bytes", layer.size_bytes},
                   {"fate", std::string(image::to_string(verdict.fate))},
                   {"held_by", told(holders)}};
  if (verdict.disuse) out["unused_since_ms"] = verdict.disuse->since_ms;
  if (verdict.disuse && verdict.disuse->condemned_ms != 0) out["condemned_at_ms"] = verdict.disuse->condemned_ms;
  if (verdict.next_ms != 0) out["next_step_at_ms"] = verdict.next_ms;
  return out;
}

std::string_view kind_text(origin::ObjectKind kind) {
  switch (kind) {
    case origin::ObjectKind::kData:
      return "data";
    case origin::ObjectKind::kMetadata:
      return "metadata";
    case origin::ObjectKind::kIndex:
      return "index";
    case origin::ObjectKind::kTrace:
      return "trace";
    default:
      return "manifest";
  }
}

std::string_view fate_text(origin::CollectedObject::Fate fate) {
  using Fate = origin::CollectedObject::Fate;
  return fate == Fate::kCondemned ? "condemned" : fate == Fate::kDue ? "due" : "removed";
}

json::object object_of(const origin::CollectedObject& object) {
  json::array kinds;
  for (const origin::ObjectKind kind : object.kinds) kinds.emplace_back(kind_text(kind));
  json::object out{{"digest", "sha256:" + object.hex}, {"kinds", std::move(kinds)}, {"fate", std::string(fate_text(object.fate))}, {"condemned_at_ms", object.condemned_ms}};
  if (object.bytes != 0) out["bytes"] = object.bytes;
  return out;
}

}  // namespace

Collector::Holders Collector::holders() const {
  Holders out;
  for (const store::Ref& ref : parts_.catalogue.all_refs())
    for (const std::string& digest : ref.layers) out[digest].push_back("ref " + ref.project + "/" + ref.name + ":" + ref.tag);
  const std::int64_t now = parts_.catalogue.now_ms();
  for (const store::Pin& pin : parts_.catalogue.pins())
    if (pin.expires_at_ms == 0 || pin.expires_at_ms > now) out[pin.digest].push_back("pin of " + pin.project + (pin.reason.empty() ? "" : ": " + pin.reason));
  for (const store::Checkpoint& checkpoint : parts_.catalogue.all_checkpoints())
    if (checkpoint.expires_at_ms == 0 || checkpoint.expires_at_ms > now)
      for (const std::string& digest : checkpoint.layers) out[digest].push_back((checkpoint.name.empty() ? "checkpoint " + checkpoint.id : "snapshot " + checkpoint.name) + " of " + checkpoint.project);
  for (const auto& [digest, sandboxes] : parts_.edge.layer_users())
    for (const std::string& id : sandboxes) out[digest].push_back("sandbox " + id);
  return out;
}

std::vector<std::string> Collector::holders_of(const std::string& digest, const Holders& all, const image::GarbagePolicy& policy) const {
  const auto found = all.find(digest);
  std::vector<std::string> out = found == all.end() ? std::vector<std::string>() : found->second;
  if (parts_.layers.in_use_by_build(digest)) out.insert(out.begin(), "a build that goes on");
  if (out.empty() && parts_.layers.published_within(digest, policy.delete_after)) out.push_back("published just now");
  return out;
}

asio::awaitable<Result<json::object>> Collector::collect(image::GarbagePolicy policy, bool dry_run) {
  if (at_it_) co_return Error(ErrorCode::kConflict, "layers are being collected already");
  at_it_ = true;
  Result<json::object> done = co_await look(policy, dry_run);
  at_it_ = false;
  co_return done;
}

asio::awaitable<Result<void>> Collector::remove_expired_checkpoints() {
  std::vector<std::string> ids;
  const std::int64_t now = parts_.catalogue.now_ms();
  for (const store::Checkpoint& checkpoint : parts_.catalogue.all_checkpoints())
    if (checkpoint.expires_at_ms != 0 && checkpoint.expires_at_ms <= now) ids.push_back(checkpoint.id);
  if (ids.empty()) co_return Result<void>();
  co_return co_await parts_.catalogue.remove_checkpoints(std::move(ids));
}

asio::awaitable<Result<json::object>> Collector::look(image::GarbagePolicy policy, bool dry_run) {
  std::map<std::string, image::Disuse> before;
  for (const store::UnusedLayer& layer : parts_.catalogue.unused_layers()) before[layer.digest] = {layer.since_ms, layer.condemned_ms};
  if (!dry_run) DSEC_CO_TRY(co_await remove_expired_checkpoints());
  const Holders all = holders();
  const std::int64_t now = parts_.catalogue.now_ms();
  std::vector<store::UnusedLayer> remembered;
  std::vector<std::pair<model::LayerRecord, std::size_t>> due;  // and where in `entries`
  json::array entries;
  for (const model::LayerRecord& layer : parts_.layers.list()) {
    const std::vector<std::string> holders = holders_of(layer.digest, all, policy);
    const auto known = before.find(layer.digest);
    const image::GarbageVerdict verdict = image::judge(!holders.empty(), known == before.end() ? std::nullopt : std::optional(known->second), policy, now);
    if (verdict.disuse) remembered.push_back({layer.digest, verdict.disuse->since_ms, verdict.disuse->condemned_ms});
    if (verdict.fate == image::Fate::kDue) due.emplace_back(layer, entries.size());
    entries.push_back(entry_of(layer, verdict, holders));
  }
  std::uint64_t freed = 0, removed = 0;
  if (!dry_run) DSEC_CO_TRY(co_await parts_.catalogue.replace_unused_layers(std::move(remembered)));
  for (const auto& [layer, place] : due) {
    json::object& entry = entries[place].get_object();
    const std::uint64_t bytes = parts_.layers.sole_bytes(layer.digest);
    entry["frees_bytes"] = bytes;
    if (!dry_run) {
      const Result<void> gone = co_await remove(layer, policy, entry);
      if (!gone.ok()) continue;
      removed++;
    }
    freed += bytes;
  }
  co_return json::object{{"dry_run", dry_run}, {"layers", std::move(entries)}, {"removed", removed}, {"freed_bytes", freed}};
}

// Looked at once more: what has come to be held since then stays.
asio::awaitable<Result<void>> Collector::remove(const model::LayerRecord& layer, const image::GarbagePolicy& policy, json::object& entry) {
  const Holders now = holders();
  const std::vector<std::string> again = holders_of(layer.digest, now, policy);
  Result<void> gone = Error(ErrorCode::kConflict, "it is held again");
  if (again.empty())
    gone = co_await net::on_pool(parts_.pool, [this, digest = layer.digest, idle = policy.delete_after] { return parts_.layers.remove_idle(digest, idle); });
  entry["fate"] = gone.ok() ? "removed" : "kept";
  if (gone.ok()) {
    log_info("an unused layer is removed", {{"layer", layer.digest}, {"source", layer.source}});
  } else {
    entry["why"] = gone.error().message();
    log_warning("an unused layer stays", {{"layer", layer.digest}, {"error", gone.error().message()}});
  }
  co_return gone;
}

asio::awaitable<Result<void>> Collector::renew_lease() {
  if (parts_.exchange == nullptr) co_return Result<void>();
  std::set<std::string> digests;
  for (const auto& [digest, who] : holders()) digests.insert(digest);
  const Result<bool> lapsed =
      co_await net::on_pool(parts_.imports, [exchange = parts_.exchange, digests] { return exchange->renew_lease(digests); });
  if (!lapsed.ok()) co_return lapsed.error();
  if (*lapsed) log_warning("for a time the shared store held nothing for this node: what is not whole here may be gone");
  co_return Result<void>();
}

asio::awaitable<Result<json::object>> Collector::collect_store(origin::CollectionOptions options) {
  if (parts_.exchange == nullptr) co_return Error(ErrorCode::kUnsupported, "this node has no shared store (dsec serve --store)");
  if (in_the_store_) co_return Error(ErrorCode::kConflict, "the shared store is being collected already");
  in_the_store_ = true;
  Result<json::object> done = co_await look_into_store(options);
  in_the_store_ = false;
  co_return done;
}

asio::awaitable<Result<void>> Collector::end_what_was_cut_off() {
  if (parts_.exchange == nullptr) co_return Result<void>();
  DSEC_CO_ASSIGN(const bool cut_off, co_await net::on_pool(parts_.imports, [exchange = parts_.exchange] { return exchange->collection_was_cut_off(); }));
  if (!cut_off) co_return Result<void>();
  log_info("a collection of the shared store was cut off and is ended now");
  DSEC_CO_TRY(co_await collect_store({}));
  co_return Result<void>();
}

asio::awaitable<Result<json::object>> Collector::look_into_store(origin::CollectionOptions options) {
  DSEC_CO_TRY(co_await renew_lease());
  DSEC_CO_ASSIGN(const origin::Collection done,
                 co_await net::on_pool(parts_.imports, [exchange = parts_.exchange, options] { return exchange->collect(options); }));
  json::array objects, nodes;
  for (const origin::CollectedObject& object : done.objects)
    if (objects.size() < kObjectsTold) objects.push_back(object_of(object));
  for (const std::string& node : done.nodes) nodes.emplace_back(node);
  json::object out{{"dry_run", options.dry_run},
                   {"objects", std::move(objects)},
                   {"not_live", done.objects.size()},
                   {"live", done.live},
                   {"nodes", std::move(nodes)},
                   {"expired_leases", done.expired_leases},
                   {"freed_bytes", done.freed_bytes}};
  if (done.leftovers) out["leftovers"] = json::object{{"found", done.leftovers->found}, {"removed", done.leftovers->removed}, {"bytes", done.leftovers->bytes}};
  co_return out;
}

asio::awaitable<void> Collector::run(std::optional<image::GarbagePolicy> policy, Duration interval) {
  asio::steady_timer timer(parts_.io);
  if (const Result<void> ended = co_await end_what_was_cut_off(); !ended.ok())
    log_warning("whether a collection of the shared store was cut off is not known", {{"error", ended.error().message()}});
  for (;;) {
    if (const Result<void> renewed = co_await renew_lease(); !renewed.ok())
      log_warning("the shared store's lease is not renewed", {{"error", renewed.error().message()}});
    if (policy)
      if (const Result<json::object> done = co_await collect(*policy, false); !done.ok())
        log_warning("the unused layers were not looked at", {{"error", done.error().message()}});
    timer.expires_after(interval);
    boost::system::error_code failed;
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, failed));
  }
}

}  // namespace dsec::apiserver
