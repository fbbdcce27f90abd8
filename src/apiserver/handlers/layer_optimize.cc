// A layer rewritten by what was read of it first: docs/adr/0027.
#include <algorithm>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "apiserver/handlers/handlers.h"
#include "base/encoding.h"
#include "image/layer_optimizer.h"
#include "model/json.h"
#include "model/strict_object.h"
#include "net/blocking.h"

namespace dsec::apiserver {
namespace json = boost::json;
namespace {

constexpr std::size_t kBodyLimit = 2 << 20;  // the longest trace in base64, and some

struct OptimizeRequest {
  std::string digest;
  model::RefName name;
  std::string trace;  // "": the store's
};

Result<std::string> read_trace(const std::string& body) {
  DSEC_ASSIGN(const json::value value, model::parse_json(body.empty() ? "{}" : body));
  std::string text;
  model::StrictObject fields(value, "");
  fields.read("trace", text);
  DSEC_TRY(fields.finish());
  return from_base64(text).within("trace");
}

// What is in quarantine stays there: a new content would have left it.
bool is_out_of_quarantine(const ApiServer& server, const model::Principal& who, const std::string& digest) {
  const std::vector<store::Ref> refs = server.parts.catalogue.refs(who);
  return std::any_of(refs.begin(), refs.end(), [&](const store::Ref& ref) { return !ref.quarantined && std::find(ref.layers.begin(), ref.layers.end(), digest) != ref.layers.end(); });
}

Result<image::TracesByData> traces_of(const ServerParts& parts, const OptimizeRequest& request) {
  if (!request.trace.empty()) return image::trace_of_only_data(parts.layers, request.digest, request.trace);
  if (parts.exchange == nullptr) return Error(ErrorCode::kUnsupported, "this node has no shared store (dsec serve --store) whose traces it could follow: give one");
  DSEC_ASSIGN(image::TracesByData traces, parts.exchange->traces(request.digest));
  if (traces.empty())
    return Error(ErrorCode::kNotFound, "the store has no access trace of the layer: one is there two minutes after the first sandbox on a node that reads the layer on demand");
  return traces;
}

Result<image::Importer::Optimized> run(const ServerParts& parts, const OptimizeRequest& request, const image::ImportOptions& options) {
  DSEC_ASSIGN(const image::TracesByData traces, traces_of(parts, request));
  DSEC_ASSIGN(image::Importer::Optimized made, parts.importer.optimize(request.digest, traces, options));
  put_into_store(parts, made.record.digest);
  return made;
}

asio::awaitable<Result<json::value>> optimize(ApiServer& server, OptimizeRequest request, std::shared_ptr<Operation> operation) {
  image::ImportOptions options;
  options.cancelled = &operation->cancelled;
  options.on_progress = progress_of(server, operation);
  DSEC_CO_ASSIGN(image::Importer::Optimized made, co_await net::on_pool(server.parts.imports, [&server, request, options] { return run(server.parts, request, options); }));
  DSEC_CO_ASSIGN(json::value described, co_await name_layer(server, operation->project, request.name, std::move(made.record)));
  json::object& out = described.get_object();
  out["optimized_from"] = request.digest;
  out["touched_bytes"] = made.counts.touched_bytes;
  out["hot_bytes"] = made.counts.hot_bytes;
  out["warm_bytes"] = made.counts.warm_bytes;
  out["data_bytes"] = made.counts.data_bytes;
  co_return described;
}

asio::awaitable<void> run_optimize(ApiServer& server, OptimizeRequest request, std::shared_ptr<Operation> operation) {
  Result<json::value> outcome = co_await optimize(server, std::move(request), operation);
  if (server.stopping) co_return;
  co_await server.operations.finish(operation, std::move(outcome));
}

}  // namespace

asio::awaitable<Result<void>> optimize_layer(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {"kind", "name"}));
  const std::string& ref = call.path.at("ref");
  OptimizeRequest request;
  DSEC_CO_ASSIGN(request.digest, readable_layer(server, call, ref));
  const std::string* const name = call.request().parameter("name");
  if (name == nullptr && model::is_digest(ref)) co_return invalid_argument("name: a layer that is named by its digest needs one for what is made of it");
  DSEC_CO_ASSIGN(request.name, model::parse_ref(name == nullptr ? ref : *name).within("name"));
  DSEC_CO_ASSIGN(const std::string body, co_await call.exchange.read_body(kBodyLimit));
  DSEC_CO_ASSIGN(request.trace, read_trace(body));
  if (!is_out_of_quarantine(server, call.principal, request.digest)) co_return Error(ErrorCode::kConflict, "the layer is in quarantine: promote it first");
  DSEC_CO_ASSIGN(auto operation, co_await start_operation(server, call, "optimize"));
  asio::co_spawn(server.parts.io, run_optimize(server, std::move(request), operation), asio::detached);
  co_return co_await respond_json(call.exchange, 202, {{"operation_id", operation->id}, {"operation", to_json(*operation)}});
}

}  // namespace dsec::apiserver
