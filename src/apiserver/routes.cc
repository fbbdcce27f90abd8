// The routes of the API, in the order in which they are tried.
#include "apiserver/handlers/handlers.h"

namespace dsec::apiserver {

const std::vector<Route>& routes() {
  using enum Access;
  static const std::vector<Route> table = {
      {"GET", "/healthz", kOpen, get_health},
      {"GET", "/readyz", kOpen, get_readiness},
      {"GET", "/metrics", kOpen, get_metrics},
      {"GET", "/v1/openapi.json", kOpen, get_openapi},
      {"GET", "/v1/whoami", kViewer, get_whoami},
      {"GET", "/v1/nodes", kViewer, list_nodes},
      {"GET", "/v1/events", kViewer, stream_events},

      {"POST", "/v1/sandboxes", kRuntime, create_sandbox},
      {"GET", "/v1/sandboxes", kViewer, list_sandboxes},
      {"POST", "/v1/sandboxes:pause", kRuntime, pause_sandboxes},
      {"POST", "/v1/sandboxes:resume", kRuntime, resume_sandboxes},
      {"POST", "/v1/sandboxes:stop", kRuntime, stop_sandboxes},
      {"GET", "/v1/sandboxes:holds", kViewer, list_holds},
      {"POST", "/v1/sandboxes/{ref}/pack", kBuilder, pack_sandbox},
      {"POST", "/v1/sandboxes/{ref}/checkpoints", kRuntime, checkpoint_sandbox},
      {"GET", "/v1/sandboxes/{ref}/checkpoints", kViewer, list_sandbox_checkpoints},
      {"POST", "/v1/sandboxes/{ref}/snapshot", kRuntime, snapshot_sandbox},
      {"POST", "/v1/sandboxes/{ref}/rollback", kRuntime, rollback_sandbox},
      {"POST", "/v1/sandboxes/{ref}/fork", kRuntime, fork_sandbox},
      {"GET", "/v1/snapshots", kViewer, list_snapshots},
      {"GET", "/v1/snapshots/{ref}", kViewer, get_snapshot},
      {"DELETE", "/v1/snapshots/{ref}", kRuntime, delete_snapshot},
      {"*", "/v1/sandboxes/{ref}/{rest...}", kViewer, serve_sandbox},

      {"POST", "/v1/images", kBuilder, import_image},
      {"GET", "/v1/images", kViewer, list_images},
      {"GET", "/v1/images/{ref}", kViewer, get_image},
      {"DELETE", "/v1/images/{ref}", kBuilder, delete_image},
      {"POST", "/v1/layers", kBuilder, import_layer},
      {"GET", "/v1/layers", kViewer, list_layers},
      {"GET", "/v1/layers/{ref}", kViewer, get_layer},
      {"DELETE", "/v1/layers/{ref}", kBuilder, delete_layer},
      {"POST", "/v1/layers/{ref}/verify", kRuntime, verify_layer},
      {"POST", "/v1/layers/{ref}/sync", kBuilder, sync_layer},
      {"POST", "/v1/layers/{ref}/optimize", kBuilder, optimize_layer},
      {"POST", "/v1/layers/{ref}/fetch", kOperator, fetch_layer},
      {"POST", "/v1/layers/{ref}/promote", kBuilder, promote_layer},
      {"GET", "/v1/layers/{ref}/files", kViewer, list_layer_files},
      {"GET", "/v1/layers/{ref}/content", kViewer, read_layer_file},
      {"GET", "/v1/layers/{ref}/diff", kViewer, diff_layers},
      {"POST", "/v1/layers/{ref}/pin", kBuilder, pin_layer},
      {"DELETE", "/v1/layers/{ref}/pin", kBuilder, unpin_layer},
      {"POST", "/v1/layers:gc", kOperator, collect_layers},
      {"GET", "/v1/pins", kViewer, list_pins},
      {"GET", "/v1/refs", kViewer, list_refs},

      {"POST", "/v1/builds", kBuilder, build_image},
      {"POST", "/v1/builds/contexts", kBuilder, upload_context},

      {"GET", "/v1/operations/{id}", kViewer, get_operation},
      {"GET", "/v1/operations/{id}/events", kViewer, stream_operation},
      {"DELETE", "/v1/operations/{id}", kRuntime, cancel_operation},

      {"GET", "/v1/services", kViewer, list_services},
      {"POST", "/v1/services", kOperator, put_service},
      {"POST", "/v1/services/detect", kOperator, detect_services},
      {"GET", "/v1/services/{name}", kViewer, get_service},
      {"DELETE", "/v1/services/{name}", kOperator, delete_service},

      {"GET", "/v1/projects", kViewer, list_projects},
      {"POST", "/v1/projects", kOperator, create_project},
      {"GET", "/v1/projects/{project}/keys", kRuntime, list_keys},
      {"POST", "/v1/projects/{project}/keys", kAdmin, create_key},
      {"DELETE", "/v1/projects/{project}/keys/{id}", kAdmin, revoke_key},
  };
  return table;
}

}  // namespace dsec::apiserver
