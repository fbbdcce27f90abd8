#include <boost/json/parse.hpp>

#include "apiserver/handlers/handlers.h"
#include "model/strict_object.h"

namespace dsec::apiserver {
namespace json = boost::json;

asio::awaitable<Result<void>> list_services(ApiServer& server, Call& call) {
  json::array items;
  for (const model::ServiceDefinition& service : server.parts.catalogue.services()) items.push_back(model::to_json(service));
  co_return co_await respond_json(call.exchange, 200, {{"items", std::move(items)}, {"next_cursor", ""}});
}

asio::awaitable<Result<void>> get_service(ApiServer& server, Call& call) {
  for (const model::ServiceDefinition& service : server.parts.catalogue.services())
    if (service.name == call.path.at("name")) co_return co_await respond_json(call.exchange, 200, model::to_json(service));
  co_return Error(ErrorCode::kNotFound, "no service " + call.path.at("name"));
}

asio::awaitable<Result<void>> put_service(ApiServer& server, Call& call) {
  DSEC_CO_ASSIGN(const std::string body, co_await call.exchange.read_body(1 << 20));
  DSEC_CO_ASSIGN(const json::value value, model::parse_json(body));
  DSEC_CO_ASSIGN(const model::ServiceDefinition service, model::service_from_json(value));
  DSEC_CO_TRY(co_await server.parts.catalogue.put_service(service));
  server.parts.edge.set_services(server.parts.catalogue.services());
  co_return co_await respond_json(call.exchange, 201, model::to_json(service));
}

asio::awaitable<Result<void>> delete_service(ApiServer& server, Call& call) {
  DSEC_CO_TRY(co_await server.parts.catalogue.remove_service(call.path.at("name")));
  server.parts.edge.set_services(server.parts.catalogue.services());
  co_return co_await call.exchange.respond({.status = 204});
}

// Reads the node's own package clients; with dry_run nothing is stored.
asio::awaitable<Result<void>> detect_services(ApiServer& server, Call& call) {
  DSEC_CO_ASSIGN(const std::string body, co_await call.exchange.read_body(4096));
  DSEC_CO_ASSIGN(const json::object request, parse_object(body, {"dry_run"}));
  const json::value* dry_run = request.if_contains("dry_run");
  if (dry_run != nullptr && !dry_run->is_bool()) co_return invalid_argument("dry_run: true or false");
  DSEC_CO_ASSIGN(const EdgeGateway::DetectedServices detected, co_await server.parts.edge.detect_services());
  json::array items;
  for (const model::ServiceDefinition& service : detected.services) {
    if (dry_run == nullptr || !dry_run->get_bool()) DSEC_CO_TRY(co_await server.parts.catalogue.put_service(service));
    items.push_back(model::to_json(service));
  }
  server.parts.edge.set_services(server.parts.catalogue.services());
  json::array notes;
  for (const std::string& note : detected.notes) notes.emplace_back(note);
  co_return co_await respond_json(call.exchange, 200, {{"items", std::move(items)}, {"notes", std::move(notes)}});
}

}  // namespace dsec::apiserver
