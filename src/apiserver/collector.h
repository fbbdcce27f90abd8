// Garbage collection of this node's layers: who holds which, and what may go.
//
// A layer is held by refs, by sandboxes that are not over, by pins, and for a
// while by having been published: whoever published it is about to name it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/json/object.hpp>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apiserver/catalogue.h"
#include "apiserver/edge_gateway.h"
#include "image/garbage.h"
#include "image/layer_exchange.h"
#include "image/layer_store.h"

namespace dsec::apiserver {

// Touched on the event loop only.
class Collector {
 public:
  // All outlive the collector.
  struct Parts {
    asio::io_context& io;
    Catalogue& catalogue;
    EdgeGateway& edge;
    image::LayerStore& layers;
    sys::WorkerPool& pool;
    sys::WorkerPool& imports;                  // for what waits for the shared store
    image::LayerExchange* exchange = nullptr;  // with it, when there is one
  };
  explicit Collector(Parts parts) : parts_(parts) {}

  // One look at every layer; what is due is removed, and the rest remembered, unless
  // `dry_run`. kConflict while another one is at it.
  asio::awaitable<Result<boost::json::object>> collect(image::GarbagePolicy policy, bool dry_run);
  // The same for the shared store and all its nodes; what this node needs is told to it before.
  asio::awaitable<Result<boost::json::object>> collect_store(origin::CollectionOptions options);
  // Now and each `interval`, for as long as the loop runs: the store's lease is renewed
  // and, with a policy, a look taken.
  asio::awaitable<void> run(std::optional<image::GarbagePolicy> policy, Duration interval);

 private:
  using Holders = std::map<std::string, std::vector<std::string>>;  // by digest: who, for people
  Holders holders() const;
  std::vector<std::string> holders_of(const std::string& digest, const Holders& all, const image::GarbagePolicy& policy) const;
  asio::awaitable<Result<void>> remove_expired_checkpoints();
  asio::awaitable<Result<void>> renew_lease();
  asio::awaitable<Result<boost::json::object>> look_into_store(origin::CollectionOptions options);
  // A run of this node that was cut off has left marks that others wait for.
  asio::awaitable<Result<void>> end_what_was_cut_off();
  asio::awaitable<Result<void>> remove(const model::LayerRecord& layer, const image::GarbagePolicy& policy, boost::json::object& entry);
  asio::awaitable<Result<boost::json::object>> look(image::GarbagePolicy policy, bool dry_run);

  Parts parts_;
  bool at_it_ = false;
  bool in_the_store_ = false;
};

}  // namespace dsec::apiserver
