// The handlers of the API: what routes.cc names. One file a resource.
#pragma once

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
asio::awaitable<Result<void>> create_sandbox(ApiServer& server, Call& call);
asio::awaitable<Result<void>> list_sandboxes(ApiServer& server, Call& call);
asio::awaitable<Result<void>> stop_sandboxes(ApiServer& server, Call& call);
asio::awaitable<Result<void>> serve_sandbox(ApiServer& server, Call& call);

// imports.cc
asio::awaitable<Result<void>> import_image(ApiServer& server, Call& call);
asio::awaitable<Result<void>> import_layer(ApiServer& server, Call& call);
asio::awaitable<Result<void>> get_operation(ApiServer& server, Call& call);
asio::awaitable<Result<void>> stream_operation(ApiServer& server, Call& call);
asio::awaitable<Result<void>> cancel_operation(ApiServer& server, Call& call);

// layers.cc
asio::awaitable<Result<void>> list_images(ApiServer& server, Call& call);
asio::awaitable<Result<void>> get_image(ApiServer& server, Call& call);
asio::awaitable<Result<void>> delete_image(ApiServer& server, Call& call);
asio::awaitable<Result<void>> list_layers(ApiServer& server, Call& call);
asio::awaitable<Result<void>> get_layer(ApiServer& server, Call& call);
asio::awaitable<Result<void>> delete_layer(ApiServer& server, Call& call);
asio::awaitable<Result<void>> verify_layer(ApiServer& server, Call& call);
asio::awaitable<Result<void>> list_refs(ApiServer& server, Call& call);
// A layer under its name: the record with name, tag, ref and layers beside it.
Result<boost::json::object> describe_ref(const ApiServer& server, const store::Ref& ref);

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
