// Hash a layer's files, check its metadata, and ask who vouches for it.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "apiserver/handlers/handlers.h"
#include "image/layer_view.h"
#include "model/builder_key.h"
#include "model/strict_object.h"
#include "net/blocking.h"
#include "net/query.h"

namespace dsec::apiserver {
namespace json = boost::json;
namespace {

constexpr std::size_t kBodyLimit = 16 << 10;

struct VerifyRequest {
  std::string digest;
  std::string key;        // PEM; "" = nobody is asked for
  std::string signature;  // base64
};

Result<json::value> verify(const image::LayerStore& layers, const VerifyRequest& request) {
  // The cheap answer first, and no hour of hashing for a key that is none.
  if (!request.key.empty()) DSEC_TRY(model::check_layer_signature(request.key, request.digest, request.signature));
  DSEC_ASSIGN(const erofs::ImageFacts facts, image::verify_layer(layers, request.digest));
  return json::value{{"digest", request.digest},
                     {"verified", true},
                     {"signed", !request.key.empty()},
                     {"inodes", facts.inodes},
                     {"directories", facts.directories},
                     {"files", facts.files},
                     {"whiteouts", facts.whiteouts},
                     {"setuid_files", facts.setuid_files},
                     {"capability_files", facts.capability_files},
                     {"content_bytes", facts.content_bytes}};
}

asio::awaitable<Result<json::value>> verify_on_pool(ApiServer& server, VerifyRequest request) {
  co_return co_await net::on_pool(server.parts.imports, [&layers = server.parts.layers, request] { return verify(layers, request); });
}

asio::awaitable<void> verify_in_background(ApiServer& server, VerifyRequest request, std::shared_ptr<Operation> operation) {
  Result<json::value> outcome = co_await verify_on_pool(server, std::move(request));
  co_await server.operations.finish(operation, std::move(outcome));
}

}  // namespace

asio::awaitable<Result<void>> verify_layer(ApiServer& server, Call& call) {
  DSEC_CO_ASSIGN(const net::Query query, net::Query::parse(call.request(), {"kind", "background"}));
  DSEC_CO_ASSIGN(const bool background, query.flag("background"));
  VerifyRequest request;
  DSEC_CO_ASSIGN(request.digest, readable_layer(server, call, call.path.at("ref")));
  DSEC_CO_ASSIGN(const std::string body, co_await call.exchange.read_body(kBodyLimit));
  DSEC_CO_ASSIGN(const json::value object, model::parse_json(body.empty() ? "{}" : body));
  model::StrictObject fields(object, "");
  fields.read("key", request.key);
  fields.read("signature", request.signature);
  DSEC_CO_TRY(fields.finish());
  if (request.key.empty() != request.signature.empty()) co_return invalid_argument("key and signature go together");
  if (!background) {
    DSEC_CO_ASSIGN(const json::value verdict, co_await verify_on_pool(server, std::move(request)));
    co_return co_await respond_json(call.exchange, 200, verdict);
  }
  DSEC_CO_ASSIGN(auto operation, co_await start_operation(server, call, "verify"));
  asio::co_spawn(server.parts.io, verify_in_background(server, std::move(request), operation), asio::detached);
  co_return co_await respond_json(call.exchange, 202, {{"operation_id", operation->id}, {"operation", to_json(*operation)}});
}

}  // namespace dsec::apiserver
