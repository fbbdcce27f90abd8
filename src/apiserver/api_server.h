// ApiServer: authenticate, authorise, resolve, place, and hand on to the edge.
//
// One event loop; every handler is a coroutine on it. What blocks (the store,
// imports) runs elsewhere. A handler returns an error or has answered.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "apiserver/build_contexts.h"
#include "apiserver/catalogue.h"
#include "apiserver/collector.h"
#include "apiserver/edge_gateway.h"
#include "apiserver/host_check.h"
#include "apiserver/operations.h"
#include "image/importer.h"
#include "image/layer_exchange.h"
#include "image/layer_store.h"
#include "net/exchange.h"

namespace dsec::apiserver {

struct ServerParts {
  asio::io_context& io;
  const Clock& clock;
  Random& random;
  Catalogue& catalogue;
  EdgeGateway& edge;
  image::LayerStore& layers;
  image::Importer& importer;
  sys::WorkerPool& imports;  // one thread an import
  sys::WorkerPool& pool;     // short blocking calls
  image::LayerExchange* exchange = nullptr;  // with the shared store, when there is one
};

struct ServerOptions {
  HostRules hosts;
  std::string node = "local";
  std::string version;
  std::string openapi_json;
  image::GarbagePolicy garbage;  // unless a call says otherwise
  std::string store_stats;  // file of dsec-stored's numbers; "" = there is none
  std::vector<image::ResidueRule> residue;  // of the operator, for every pack
  std::uint64_t build_cache_bytes = 20ULL << 30;
  std::chrono::seconds build_cache_age = std::chrono::hours(24 * 7);  // since the last use
};

class ApiServer;

// One request on its way through a handler.
struct Call {
  net::Exchange& exchange;
  model::Principal principal;
  std::map<std::string, std::string> path;  // by the names in the route's pattern
  const net::HttpRequest& request() const { return exchange.request(); }
};

using Handler = asio::awaitable<Result<void>> (*)(ApiServer&, Call&);

// From which role on (model/principal.h). kOperator: the default project's admin, over the node.
enum class Access { kOpen, kViewer, kRuntime, kBuilder, kAdmin, kOperator };

struct Route {
  const char* method;
  const char* pattern;  // "/v1/layers/{ref}"; a final "{rest...}" takes what is left
  Access access;
  Handler handler;
};

// The table; the test of api/openapi.yaml reads it too.
const std::vector<Route>& routes();

class ApiServer {
 public:
  ApiServer(ServerParts parts, ServerOptions options);
  // The whole life of one request. Never throws, always answers.
  asio::awaitable<void> handle(net::Exchange& exchange);
  // Before the requests are drained: streams end, waits are answered, builds are given up.
  void begin_stop() {
    stopping = true;
    operations.give_up();
  }

  // Ends what is left of builds that the last life of the server did not finish; from
  // then on, now and then, forgets contexts and cached steps. Does not return.
  asio::awaitable<void> keep_builds(Duration interval);
  // After begin_stop(): until no build is under way any more, or `by` has come.
  asio::awaitable<void> builds_over(Instant by);

  ServerParts parts;
  const ServerOptions options;
  Operations operations;
  BuildContexts contexts;
  std::size_t builds = 0;              // under way
  asio::steady_timer a_build_is_over;  // cancelled by each end
  Collector collector;
  std::map<int, std::uint64_t> answers_by_class;  // 2, 4, 5
  bool stopping = false;

 private:
  asio::awaitable<Result<void>> dispatch(net::Exchange& exchange);
  asio::awaitable<void> end_cut_off_builds();
};

// Names in a body or query that the call does not know are refused.
Result<boost::json::object> parse_object(const std::string& body, std::initializer_list<std::string_view> known);
Result<void> check_parameters(const net::HttpRequest& request, std::initializer_list<std::string_view> known);
asio::awaitable<Result<void>> respond_json(net::Exchange& exchange, int status, const boost::json::value& value);

}  // namespace dsec::apiserver
