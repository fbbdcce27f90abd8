// The handlers of the API: what routes.cc names. One file a resource.
#pragma once

#include <functional>
#include <set>

#include "apiserver/api_server.h"

namespace dsec::apiserver {

// node.cc
asio::awaitable<Result<void>> get_health(ApiServer& server, Call& call);
asio::awaitable<Result<void>> get_readiness(ApiServer& server, Call& call);
asio::awaitable<Result<void>> get_metrics(ApiServer& server, Call& call);
asio::awaitable<Result<void>> get_openapi(ApiServer& server, Call& call);
asio::awaitable<Result<void>> get_whoami(ApiServer& server, Call& call);
asio::awaitable<Result<void>> list_nodes(ApiServer& server, Call& call);
asio::awaitable<Result<void>> stream_events(ApiServer& server, Call& call);

// sandboxes.cc
struct Made {
  model::Sandbox sandbox;
  boost::json::array warnings;
};
// What every create does: resolves, places, asks the edge. `command.layers` is filled in here.
asio::awaitable<Result<Made>> make_sandbox(ApiServer& server, CreateCommand command);
Result<std::string> idempotency_key_of(const Call& call);  // "" = none
asio::awaitable<Result<void>> create_sandbox(ApiServer& server, Call& call);
asio::awaitable<Result<void>> list_sandboxes(ApiServer& server, Call& call);
asio::awaitable<Result<void>> serve_sandbox(ApiServer& server, Call& call);

// bulk.cc
asio::awaitable<Result<void>> pause_sandboxes(ApiServer& server, Call& call);
asio::awaitable<Result<void>> resume_sandboxes(ApiServer& server, Call& call);
asio::awaitable<Result<void>> stop_sandboxes(ApiServer& server, Call& call);
asio::awaitable<Result<void>> list_holds(ApiServer& server, Call& call);
// X-Dsec-Fence; kInvalidArgument for one that is no number.
Result<std::optional<std::uint64_t>> fence_of(const net::HttpRequest& request);
// That of a call about a sandbox; kConflict for one that is too old.
Result<std::optional<std::uint64_t>> checked_fence(const Call& call, const model::Sandbox& sandbox);

// imports.cc
asio::awaitable<Result<void>> import_image(ApiServer& server, Call& call);
asio::awaitable<Result<void>> import_layer(ApiServer& server, Call& call);
asio::awaitable<Result<void>> get_operation(ApiServer& server, Call& call);
asio::awaitable<Result<void>> stream_operation(ApiServer& server, Call& call);
asio::awaitable<Result<void>> cancel_operation(ApiServer& server, Call& call);
// The body of a request as an importer's input; what does not come whole makes nothing.
using BodyImport = std::function<Result<image::ImportedImage>(int input, const std::atomic<bool>& cancelled)>;
asio::awaitable<Result<image::ImportedImage>> import_body(ApiServer& server, net::Exchange& exchange, BodyImport work);
// Parts of images that the caller may read.
std::set<std::string> reusable_parts(const ApiServer& server, const model::Principal& who);
// Names a layer that is there, and describes it so.
asio::awaitable<Result<boost::json::value>> name_layer(ApiServer& server, std::string project, model::RefName name, model::LayerRecord record);
// Puts a layer that was just made into the shared store, if there is one. A store that
// cannot be reached does not take from the node what it has: `dsec layer sync` puts it
// there later. Blocks.
void put_into_store(const ServerParts& parts, const std::string& digest);
// Tells an operation how far its work is. Any thread.
std::function<void(const image::ImportProgress&)> progress_of(ApiServer& server, std::shared_ptr<Operation> operation);
// A new operation of the caller's project, stored already.
asio::awaitable<Result<std::shared_ptr<Operation>>> start_operation(ApiServer& server, const Call& call, std::string kind);

// layers.cc
asio::awaitable<Result<void>> list_images(ApiServer& server, Call& call);
asio::awaitable<Result<void>> get_image(ApiServer& server, Call& call);
asio::awaitable<Result<void>> delete_image(ApiServer& server, Call& call);
asio::awaitable<Result<void>> list_layers(ApiServer& server, Call& call);
asio::awaitable<Result<void>> get_layer(ApiServer& server, Call& call);
asio::awaitable<Result<void>> delete_layer(ApiServer& server, Call& call);
asio::awaitable<Result<void>> list_refs(ApiServer& server, Call& call);
// A layer under its name: the record with name, tag, ref and layers beside it.
Result<boost::json::object> describe_ref(const ApiServer& server, const store::Ref& ref);
// A ref of any kind, or of the one that ?kind= names.
Result<store::Ref> find_layer_ref(ApiServer& server, const Call& call, const std::string& text);
// The digest of a layer, by name or digest, that the caller may read.
Result<std::string> readable_layer(ApiServer& server, const Call& call, const std::string& text);

// layer_files.cc
asio::awaitable<Result<void>> list_layer_files(ApiServer& server, Call& call);
asio::awaitable<Result<void>> read_layer_file(ApiServer& server, Call& call);
asio::awaitable<Result<void>> diff_layers(ApiServer& server, Call& call);

// layer_verify.cc
asio::awaitable<Result<void>> verify_layer(ApiServer& server, Call& call);

// layer_optimize.cc
asio::awaitable<Result<void>> optimize_layer(ApiServer& server, Call& call);

// layer_exchange.cc
asio::awaitable<Result<void>> sync_layer(ApiServer& server, Call& call);
asio::awaitable<Result<void>> fetch_layer(ApiServer& server, Call& call);
// Takes those layers that the node lacks from the shared store, when there is one;
// without, they stay missing. The caller has found that the project may use them.
asio::awaitable<Result<void>> take_missing(ApiServer& server, std::vector<std::string> digests);

// garbage.cc
asio::awaitable<Result<void>> collect_layers(ApiServer& server, Call& call);
asio::awaitable<Result<void>> pin_layer(ApiServer& server, Call& call);
asio::awaitable<Result<void>> unpin_layer(ApiServer& server, Call& call);
asio::awaitable<Result<void>> list_pins(ApiServer& server, Call& call);

// pack.cc
asio::awaitable<Result<void>> pack_sandbox(ApiServer& server, Call& call);
// What the hidden tests of the caller's project must not be found by in a layer.
asio::awaitable<Result<std::vector<image::ResidueRule>>> hidden_rules(ApiServer& server, model::Principal who);
asio::awaitable<Result<void>> promote_layer(ApiServer& server, Call& call);

// builds.cc
asio::awaitable<Result<void>> upload_context(ApiServer& server, Call& call);
asio::awaitable<Result<void>> build_image(ApiServer& server, Call& call);
// checkpoints.cc
asio::awaitable<Result<void>> checkpoint_sandbox(ApiServer& server, Call& call);
asio::awaitable<Result<void>> list_sandbox_checkpoints(ApiServer& server, Call& call);
asio::awaitable<Result<void>> snapshot_sandbox(ApiServer& server, Call& call);
asio::awaitable<Result<void>> rollback_sandbox(ApiServer& server, Call& call);
asio::awaitable<Result<void>> fork_sandbox(ApiServer& server, Call& call);
asio::awaitable<Result<void>> list_snapshots(ApiServer& server, Call& call);
asio::awaitable<Result<void>> get_snapshot(ApiServer& server, Call& call);
asio::awaitable<Result<void>> delete_snapshot(ApiServer& server, Call& call);

// services.cc
asio::awaitable<Result<void>> list_services(ApiServer& server, Call& call);
asio::awaitable<Result<void>> put_service(ApiServer& server, Call& call);
asio::awaitable<Result<void>> detect_services(ApiServer& server, Call& call);
asio::awaitable<Result<void>> get_service(ApiServer& server, Call& call);
asio::awaitable<Result<void>> delete_service(ApiServer& server, Call& call);

// projects.cc
asio::awaitable<Result<void>> list_projects(ApiServer& server, Call& call);
asio::awaitable<Result<void>> create_project(ApiServer& server, Call& call);
asio::awaitable<Result<void>> list_keys(ApiServer& server, Call& call);
asio::awaitable<Result<void>> create_key(ApiServer& server, Call& call);
asio::awaitable<Result<void>> revoke_key(ApiServer& server, Call& call);

}  // namespace dsec::apiserver
