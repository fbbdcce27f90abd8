// The port from the apiserver to the edges: one edge in the same process today.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "image/importer.h"
#include "model/principal.h"
#include "model/sandbox.h"
#include "model/service.h"
#include "net/exchange.h"
#include "placement/placement.h"

namespace dsec::apiserver {

struct CreateCommand {
  model::Principal principal;
  model::SandboxSpec spec;
  model::ResolvedLayers layers;
  std::string idempotency_key;  // "" = none
  Duration wait = std::chrono::seconds(30);
};

struct PackCommand {
  model::Principal principal;
  std::string ref;
  image::PackOptions options;  // what the edge does not know itself; on_progress is called on any thread
  std::shared_ptr<std::atomic<bool>> cancelled;
  std::string event = "packed";  // what the sandbox's story calls it
  std::optional<std::uint64_t> fence;  // of the caller's lease
  bool unless_unchanged = false;       // what the last such pack made is the answer where nothing has changed
};

struct RollbackCommand {
  model::Principal principal;
  std::string ref;
  std::string checkpoint;               // its id, for the story
  std::vector<std::string> layers;      // that the sandbox is made of afterwards, lowest first
  std::optional<std::uint64_t> fence;  // of the caller's lease
};

// For builds: a command and a file in a sandbox of the caller's.
struct CommandOrder {
  model::Principal principal;
  std::string sandbox;
  std::vector<std::string> argv;
  std::map<std::string, std::string> env;
  std::function<void(std::string_view bytes)> on_output;  // both streams
  std::int64_t timeout_ms = 0;  // 0 = none
};
struct CommandEnd {
  int exit_code = 0;
  std::string why;  // when it did not exit by itself
  bool infra = false;
};
struct FileOrder {
  model::Principal principal;
  std::string sandbox;
  std::string path;
  std::string bytes;
  std::string user;
  std::uint32_t mode = 0;
};

// One call for all that a selector names.
struct BulkCommand {
  enum class Verb { kPause, kResume, kStop };
  model::Principal principal;
  Verb verb = Verb::kPause;
  std::string selector;  // "" = every one of the project
  std::string reason = "user";
  model::Wake wake = model::Wake::kAny;
  std::optional<std::uint64_t> fence;
  Duration within = std::chrono::seconds(30);
};

struct BulkResult {
  std::string id;
  std::string name;
  model::SandboxState state = model::SandboxState::kEnded;
  std::optional<Error> error;
};

// A bulk pause that stands.
struct Hold {
  std::string selector;
  std::string reason;
  model::Wake wake = model::Wake::kAny;
  std::uint64_t fence = 0;
  std::int64_t at_ms = 0;
  std::size_t queued = 0;  // sandboxes that it holds back
};

struct ListQuery {
  std::string selector;
  std::string state;  // "" = every state but ended; "all"; or one state
  std::size_t limit = 100;
  std::string cursor;
};

class EdgeGateway {
 public:
  virtual ~EdgeGateway() = default;
  // Returns when the sandbox runs, has failed (the error says why) or `wait` has passed
  // (the sandbox's state tells). The same idempotency key gives the same sandbox for 24 h.
  virtual net::asio::awaitable<Result<model::Sandbox>> create(CreateCommand command) = 0;
  // The sandbox of an id, a unique id prefix or a name, while its edge remembers it.
  virtual Result<model::Sandbox> find(const model::Principal& principal, const std::string& ref) const = 0;
  // What a running sandbox has written, as a new layer.
  virtual net::asio::awaitable<Result<model::LayerRecord>> pack(PackCommand command) = 0;
  // To its end; that of its sandbox ends it.
  virtual net::asio::awaitable<Result<CommandEnd>> run_command(CommandOrder order) = 0;
  virtual net::asio::awaitable<Result<void>> write_file(FileOrder order) = 0;
  // The sandbox's files become those of these layers; its processes end, its id, name and clocks stay.
  virtual net::asio::awaitable<Result<model::Sandbox>> rollback(RollbackCommand command) = 0;
  struct Page {
    std::vector<model::Sandbox> items;
    std::string next_cursor;
  };
  virtual net::asio::awaitable<Result<Page>> list(model::Principal principal, ListQuery query) = 0;
  // Everything below /v1/sandboxes/{ref}: the edge answers itself. `ref` is an id, a
  // unique id prefix or a name; `rest` are the segments behind it.
  virtual net::asio::awaitable<void> serve(net::Exchange& exchange, model::Principal principal, std::string ref,
                                           std::vector<std::string> rest) = 0;
  // Requests whose Host is {port}-{id}.domain: traffic into a sandbox's port.
  virtual net::asio::awaitable<void> serve_port_host(net::Exchange& exchange, std::string sandbox_id, std::uint16_t port) = 0;
  // Every service that is defined: given at start and after each change. Sandboxes get
  // the definitions of the services that they name; one that changes cuts their flows
  // where it no longer allows them.
  virtual void set_services(std::vector<model::ServiceDefinition> services) = 0;
  // What the node's own package clients say of their registries, for `dsec service
  // detect`. Stores nothing. `notes` say what was not found and why.
  struct DetectedServices {
    std::vector<model::ServiceDefinition> services;
    std::vector<std::string> notes;
  };
  virtual net::asio::awaitable<Result<DetectedServices>> detect_services() = 0;
  // How it went for each; at the deadline as far as it has gone. A pause holds back
  // who comes later, until the resume with the same selector.
  virtual net::asio::awaitable<Result<std::vector<BulkResult>>> bulk(BulkCommand command) = 0;
  virtual std::vector<Hold> holds(const std::string& project) const = 0;
  // Ends a sandbox; one that has ended already is left as it is.
  virtual net::asio::awaitable<Result<model::Sandbox>> end(model::Principal principal, std::string ref) = 0;
  // Whether a sandbox that is not over is made of this layer.
  virtual bool uses_layer(const std::string& digest) const = 0;
  // By digest: the ids of all of them.
  virtual std::map<std::string, std::vector<std::string>> layer_users() const = 0;
  // What happened to sandboxes of a project ("" = of all) after event `after`, as far as
  // it is remembered. Waits until there is something, or until `by`.
  struct Event {
    std::uint64_t sequence = 0;
    std::int64_t at_ms = 0;
    std::string sandbox;
    std::string project;
    std::string type;
    std::string detail;
  };
  virtual net::asio::awaitable<std::vector<Event>> events(std::string project, std::uint64_t after, Instant by) = 0;
  virtual std::uint64_t last_event() const = 0;
  // What placement goes by.
  virtual placement::EdgeLoad load() const = 0;
  // Numbers for /v1/nodes and /metrics, as a JSON object.
  virtual std::string node_json() const = 0;
};

}  // namespace dsec::apiserver
