#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>

#include "apiserver/handlers/handlers.h"
#include "model/json_text.h"
#include "net/blocking.h"
#include "sys/file.h"

namespace dsec::apiserver {
namespace json = boost::json;

asio::awaitable<Result<void>> get_health(ApiServer&, Call& call) { co_return co_await respond_json(call.exchange, 200, {{"status", "ok"}}); }

asio::awaitable<Result<void>> get_readiness(ApiServer& server, Call& call) {
  if (server.stopping) co_return Error(ErrorCode::kUnavailable, "the server is stopping");
  co_return co_await respond_json(call.exchange, 200, {{"status", "ready"}});
}

namespace {
constexpr std::size_t kMaxStats = 64 << 20;

// Every number of the edge's object, and of the objects in it, as one gauge.
void write_gauges(std::string& out, const std::string& prefix, const json::object& object) {
  for (const auto& field : object) {
    const std::string name = prefix + "_" + std::string(field.key());
    if (const json::object* inner = field.value().if_object()) {
      write_gauges(out, name, *inner);
    } else if (field.value().is_number()) {
      out += "# TYPE " + name + " gauge\n" + name + " " + model::json_text(field.value()) + "\n";
    }
  }
}

// Of all objects together: an object's own numbers are in the file.
void write_store_gauges(std::string& out, const std::string& stats) {
  boost::system::error_code failed;
  const json::value value = json::parse(stats, failed);
  if (failed || !value.is_object()) return;
  json::object all = value.get_object();
  all.erase("objects");
  if (const json::value* total = all.if_contains("total"); total != nullptr && total->is_object()) write_gauges(out, "dsec_store", total->get_object());
  all.erase("total");
  write_gauges(out, "dsec_store", all);
}
}  // namespace

asio::awaitable<Result<void>> get_metrics(ApiServer& server, Call& call) {
  boost::system::error_code failed;
  const json::value node = json::parse(server.parts.edge.node_json(), failed);
  std::string text;
  if (!failed && node.is_object()) write_gauges(text, "dsec_node", node.get_object());
  if (!server.options.store_stats.empty()) {
    const Result<std::string> stats = co_await net::on_pool(server.parts.pool, [path = server.options.store_stats] { return sys::read_file(path, kMaxStats); });
    if (stats.ok()) write_store_gauges(text, *stats);
  }
  text += "# TYPE dsec_layers gauge\ndsec_layers " + std::to_string(server.parts.layers.list().size()) + "\n";
  co_return co_await call.exchange.respond({.status = 200, .headers = {{"Content-Type", "text/plain; version=0.0.4"}}, .body = std::move(text)});
}

asio::awaitable<Result<void>> get_openapi(ApiServer& server, Call& call) {
  co_return co_await call.exchange.respond(net::json_response(200, server.options.openapi_json));
}

asio::awaitable<Result<void>> get_whoami(ApiServer& server, Call& call) {
  co_return co_await respond_json(call.exchange, 200,
                                  {{"project", call.principal.project},
                                   {"key_id", call.principal.key_id},
                                   {"role", std::string(model::to_string(call.principal.role))},
                                   {"node", server.options.node},
                                   {"version", server.options.version}});
}

asio::awaitable<Result<void>> list_nodes(ApiServer& server, Call& call) {
  boost::system::error_code failed;
  json::value node = json::parse(server.parts.edge.node_json(), failed);
  if (failed || !node.is_object()) co_return Error(ErrorCode::kInternal, "the node's numbers are not JSON");
  node.get_object()["id"] = server.options.node;
  co_return co_await respond_json(call.exchange, 200, {{"items", json::array{node}}, {"next_cursor", ""}});
}

// Server-sent events; Last-Event-ID or ?after= goes on where a client left off.
asio::awaitable<Result<void>> stream_events(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {"after", "wait_ms"}));
  std::uint64_t after = server.parts.edge.last_event();
  const std::string* from = call.request().parameter("after");
  if (from == nullptr) from = call.request().header("Last-Event-ID");
  if (from != nullptr) {
    const auto [end, error] = std::from_chars(from->data(), from->data() + from->size(), after);
    if (error != std::errc() || end != from->data() + from->size()) co_return invalid_argument("after: not a number");
  }
  DSEC_CO_TRY(co_await call.exchange.begin(200, {{"Content-Type", "text/event-stream"}, {"Cache-Control", "no-store"}}));
  DSEC_CO_TRY(co_await call.exchange.write(": dsec\n\n"));
  const std::string project = call.principal.role == model::Role::kAdmin && call.principal.project == kDefaultProject ? "" : call.principal.project;
  while (!server.stopping) {
    const auto events = co_await server.parts.edge.events(project, after, server.parts.clock.now() + std::chrono::seconds(15));
    std::string text = events.empty() ? ": still here\n\n" : "";
    for (const EdgeGateway::Event& event : events) {
      after = event.sequence;
      const json::object data{{"sequence", event.sequence}, {"at_ms", event.at_ms}, {"sandbox", event.sandbox},
                              {"project", event.project},   {"type", event.type},   {"detail", event.detail}};
      text += "id: " + std::to_string(event.sequence) + "\nevent: " + event.type + "\ndata: " + model::json_text(data) + "\n\n";
    }
    DSEC_CO_TRY(co_await call.exchange.write(text));
  }
  co_return co_await call.exchange.end();
}

}  // namespace dsec::apiserver
