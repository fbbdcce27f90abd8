// Layers to and from the shared store.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "apiserver/handlers/handlers.h"
#include "net/blocking.h"
#include "net/query.h"

namespace dsec::apiserver {
namespace json = boost::json;
namespace {

Result<image::LayerExchange*> exchange_of(ApiServer& server) {
  if (server.parts.exchange != nullptr) return server.parts.exchange;
  return Error(ErrorCode::kUnsupported, "this node has no shared store (dsec serve --store)");
}

asio::awaitable<void> sync(ApiServer& server, image::LayerExchange& exchange, std::string digest, std::string to, std::shared_ptr<Operation> operation) {
  const Result<void> put = co_await net::on_pool(server.parts.imports, [&exchange, digest, to] { return exchange.put(digest, to); });
  Result<json::value> outcome = json::value{{"digest", digest}, {"store", to}};
  if (!put.ok()) outcome = put.error();
  co_await server.operations.finish(operation, std::move(outcome));
}

asio::awaitable<void> fetch(ApiServer& server, image::LayerExchange& exchange, std::string digest, model::RefName name, std::shared_ptr<Operation> operation) {
  Result<model::LayerRecord> record = co_await net::on_pool(server.parts.imports, [&exchange, digest] { return exchange.take(digest); });
  Result<json::value> outcome = json::value();
  if (record.ok())
    outcome = co_await name_layer(server, operation->project, name, std::move(record).value());
  else
    outcome = std::move(record).error();
  co_await server.operations.finish(operation, std::move(outcome));
}

asio::awaitable<Result<void>> answer(Call& call, const Operation& operation) {
  co_return co_await respond_json(call.exchange, 202, {{"operation_id", operation.id}, {"operation", to_json(operation)}});
}

}  // namespace

asio::awaitable<Result<void>> sync_layer(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {"kind", "to"}));
  DSEC_CO_ASSIGN(image::LayerExchange* const exchange, exchange_of(server));
  DSEC_CO_ASSIGN(const std::string digest, readable_layer(server, call, call.path.at("ref")));
  const std::string* const to = call.request().parameter("to");
  DSEC_CO_ASSIGN(auto operation, co_await start_operation(server, call, "sync"));
  asio::co_spawn(server.parts.io, sync(server, *exchange, digest, to == nullptr ? "" : *to, operation), asio::detached);
  co_return co_await answer(call, *operation);
}

// The operator's alone: whoever says a digest has shown nothing.
asio::awaitable<Result<void>> fetch_layer(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {"name"}));
  DSEC_CO_ASSIGN(image::LayerExchange* const exchange, exchange_of(server));
  const std::string* const text = call.request().parameter("name");
  if (text == nullptr) co_return invalid_argument("name: what the layer is to be called is missing");
  DSEC_CO_ASSIGN(const model::RefName name, model::parse_ref(*text));
  const std::string& digest = call.path.at("ref");
  if (!model::is_digest(digest)) co_return invalid_argument("a layer of the store is named by its digest: " + digest);
  DSEC_CO_ASSIGN(auto operation, co_await start_operation(server, call, "fetch"));
  asio::co_spawn(server.parts.io, fetch(server, *exchange, digest, name, operation), asio::detached);
  co_return co_await answer(call, *operation);
}

asio::awaitable<Result<void>> take_missing(ApiServer& server, std::vector<std::string> digests) {
  image::LayerExchange* const exchange = server.parts.exchange;
  if (exchange == nullptr) co_return Result<void>();
  for (const std::string& digest : digests) {
    if (server.parts.layers.find(digest).ok()) continue;
    const Result<model::LayerRecord> taken = co_await net::on_pool(server.parts.imports, [exchange, digest] { return exchange->take(digest); });
    if (!taken.ok()) co_return taken.error();
  }
  co_return Result<void>();
}

}  // namespace dsec::apiserver
