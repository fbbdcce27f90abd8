#include <algorithm>

#include "apiserver/handlers/handlers.h"
#include "model/json.h"
#include "model/strict_object.h"
#include "net/blocking.h"
#include "sys/file.h"

namespace dsec::apiserver {
namespace json = boost::json;
namespace {

json::value list_of(json::array items) { return {{"items", std::move(items)}, {"next_cursor", ""}}; }

// Refs go first, so that a crash leaves a layer without a name and never a name without a layer.
asio::awaitable<Result<void>> remove_named(ApiServer& server, const std::string& project, store::Ref ref) {
  for (const std::string& digest : ref.layers)
    if (server.parts.edge.uses_layer(digest)) co_return Error(ErrorCode::kConflict, "a sandbox uses " + ref.name + ":" + ref.tag);
  DSEC_CO_TRY(co_await server.parts.catalogue.remove_ref(project, ref.kind, ref.name + ":" + ref.tag));
  for (const std::string& digest : ref.layers) {
    if (server.parts.catalogue.is_referenced(digest)) continue;
    Result<void> removed = co_await net::on_pool(server.parts.pool, [&server, digest] {
      return server.parts.layers.remove(digest);
    });
    if (!removed.ok() && removed.error().code() != ErrorCode::kNotFound) co_return removed;
  }
  co_return Result<void>();
}

}  // namespace

Result<store::Ref> find_layer_ref(ApiServer& server, const Call& call, const std::string& text) {
  std::vector<store::RefKind> kinds = {store::RefKind::kImage, store::RefKind::kWorkspace, store::RefKind::kToolkit, store::RefKind::kDiff, store::RefKind::kVerifier};
  if (const std::string* wanted = call.request().parameter("kind")) {
    DSEC_ASSIGN(const model::LayerKind kind, model::parse_layer_kind(*wanted));
    kinds = {store::ref_kind(kind)};
  }
  for (const store::RefKind kind : kinds) {
    Result<store::Ref> found = server.parts.catalogue.find_ref(call.principal, kind, text);
    if (found.ok() || found.error().code() != ErrorCode::kNotFound) return found;
  }
  return Error(ErrorCode::kNotFound, "no layer " + text);
}

Result<std::string> readable_layer(ApiServer& server, const Call& call, const std::string& text) {
  if (model::is_digest(text)) {
    if (!server.parts.catalogue.may_read(call.principal, text)) return Error(ErrorCode::kNotFound, "no layer " + text);
    return text;
  }
  DSEC_ASSIGN(const store::Ref ref, find_layer_ref(server, call, text));
  return ref.layers.back();
}

Result<json::object> describe_ref(const ApiServer& server, const store::Ref& ref) {
  json::object out;
  json::array layers;
  for (const std::string& digest : ref.layers) {
    DSEC_ASSIGN(const model::LayerRecord record, server.parts.layers.find(digest));
    out = model::to_json(record).get_object();
    layers.emplace_back(digest);
  }
  out["name"] = ref.name;
  out["tag"] = ref.tag;
  out["ref"] = ref.name + ":" + ref.tag;
  out["project"] = ref.project;
  if (ref.quarantined) out["quarantined"] = true;
  out["layers"] = std::move(layers);
  return out;
}

namespace {

constexpr std::size_t kMaxStats = 64 << 20;

// Each of the layer's data objects: whether it is here, and what reading it on demand
// came to since dsec-stored serves it, with whether reading ahead helped.
Result<json::array> data_of(const image::LayerStore& layers, const std::string& digest, const std::string& stats_path) {
  json::array out;
  DSEC_ASSIGN(const std::vector<image::LayerStore::Data> data, layers.data(digest));
  const Result<std::string> text = stats_path.empty() ? Error(ErrorCode::kNotFound, "no numbers") : sys::read_file(stats_path, kMaxStats);
  const Result<json::value> stats = text.ok() ? model::parse_json(*text) : Result<json::value>(text.error());
  const json::object* const all = stats.ok() ? stats->if_object() : nullptr;
  const json::value* const objects = all != nullptr ? all->if_contains("objects") : nullptr;
  for (const image::LayerStore::Data& one : data) {
    json::object item{{"digest", "sha256:" + one.device.digest}, {"bytes", one.device.bytes()}, {"whole", one.whole}};
    const json::value* const numbers = objects != nullptr && objects->is_object() ? objects->get_object().if_contains(one.device.digest) : nullptr;
    if (numbers != nullptr && numbers->is_object())
      for (const auto& field : numbers->get_object()) item.insert_or_assign(field.key(), field.value());
    out.push_back(std::move(item));
  }
  return out;
}

asio::awaitable<Result<void>> respond_with_data(ApiServer& server, Call& call, const std::string& digest, json::object item) {
  DSEC_CO_ASSIGN(item["data"], co_await net::on_pool(server.parts.pool, [&layers = server.parts.layers, digest, path = server.options.store_stats] { return data_of(layers, digest, path); }));
  co_return co_await respond_json(call.exchange, 200, std::move(item));
}

}  // namespace

asio::awaitable<Result<void>> list_images(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {"cursor", "limit"}));
  json::array items;
  for (const store::Ref& ref : server.parts.catalogue.refs(call.principal)) {
    if (ref.kind != store::RefKind::kImage) continue;
    // A layer that is gone from the disk is left out; `dsec doctor` tells.
    if (Result<json::object> item = describe_ref(server, ref); item.ok()) items.push_back(std::move(item).value());
  }
  co_return co_await respond_json(call.exchange, 200, list_of(std::move(items)));
}

asio::awaitable<Result<void>> get_image(ApiServer& server, Call& call) {
  DSEC_CO_ASSIGN(const store::Ref ref, server.parts.catalogue.find_ref(call.principal, store::RefKind::kImage, call.path.at("ref")));
  DSEC_CO_ASSIGN(json::object item, describe_ref(server, ref));
  co_return co_await respond_with_data(server, call, ref.layers.back(), std::move(item));
}

asio::awaitable<Result<void>> delete_image(ApiServer& server, Call& call) {
  DSEC_CO_ASSIGN(store::Ref ref, server.parts.catalogue.find_ref(call.principal, store::RefKind::kImage, call.path.at("ref")));
  DSEC_CO_TRY(co_await remove_named(server, call.principal.project, std::move(ref)));
  co_return co_await call.exchange.respond({.status = 204});
}

asio::awaitable<Result<void>> list_layers(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {"cursor", "limit", "kind"}));
  std::map<std::string, json::object> by_digest;
  for (const store::Ref& ref : server.parts.catalogue.refs(call.principal)) {
    for (const std::string& digest : ref.layers) {
      Result<model::LayerRecord> record = server.parts.layers.find(digest);
      if (!record.ok()) continue;
      if (const std::string* kind = call.request().parameter("kind"); kind != nullptr && *kind != model::to_string(record->kind)) continue;
      json::object& item = by_digest[digest];
      if (item.empty()) {
        item = model::to_json(*record).get_object();
        item["refs"] = json::array();
        item["name"] = ref.name;
        item["tag"] = ref.tag;
        item["ref"] = ref.name + ":" + ref.tag;
      }
      item["refs"].get_array().emplace_back(ref.name + ":" + ref.tag);
    }
  }
  json::array items;
  for (auto& [digest, item] : by_digest) items.push_back(std::move(item));
  co_return co_await respond_json(call.exchange, 200, list_of(std::move(items)));
}

asio::awaitable<Result<void>> get_layer(ApiServer& server, Call& call) {
  const std::string& text = call.path.at("ref");
  if (model::is_digest(text)) {
    if (!server.parts.catalogue.may_read(call.principal, text)) co_return Error(ErrorCode::kNotFound, "no layer " + text);
    DSEC_CO_ASSIGN(const model::LayerRecord record, server.parts.layers.find(text));
    co_return co_await respond_with_data(server, call, text, model::to_json(record).get_object());
  }
  DSEC_CO_ASSIGN(const store::Ref ref, find_layer_ref(server, call, text));
  DSEC_CO_ASSIGN(json::object item, describe_ref(server, ref));
  co_return co_await respond_with_data(server, call, ref.layers.back(), std::move(item));
}

asio::awaitable<Result<void>> delete_layer(ApiServer& server, Call& call) {
  DSEC_CO_ASSIGN(store::Ref ref, find_layer_ref(server, call, call.path.at("ref")));
  DSEC_CO_TRY(co_await remove_named(server, call.principal.project, std::move(ref)));
  co_return co_await call.exchange.respond({.status = 204});
}

asio::awaitable<Result<void>> list_refs(ApiServer& server, Call& call) {
  json::array items;
  for (const store::Ref& ref : server.parts.catalogue.refs(call.principal)) {
    json::array layers;
    for (const std::string& digest : ref.layers) layers.emplace_back(digest);
    items.push_back({{"project", ref.project},
                     {"kind", std::string(store::to_string(ref.kind))},
                     {"ref", ref.name + ":" + ref.tag},
                     {"layers", std::move(layers)},
                     {"quarantined", ref.quarantined},
                     {"created_at_ms", ref.created_at_ms}});
  }
  co_return co_await respond_json(call.exchange, 200, list_of(std::move(items)));
}

}  // namespace dsec::apiserver
