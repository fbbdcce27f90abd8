// Edge: the owner of the sandboxes of one node.
//
// One event loop, one thread: every method is called on it and none blocks,
// but open(). The log is the truth; a process that dies at any moment finds the
// same sandboxes again (edge_recovery.cc).
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "edge/brake.h"
#include "edge/context.h"
#include "edge/egress_proxy.h"
#include "edge/live_sandbox.h"
#include "edge/upper_pool.h"
#include "image/data_faults.h"
#include "image/importer.h"
#include "image/layer_store.h"
#include "model/principal.h"
#include "model/sandbox_id.h"
#include "model/selector.h"
#include "model/service.h"
#include "net/exchange.h"
#include "store/store.h"

namespace dsec::edge {

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
  std::optional<std::uint64_t> fence;
  bool unless_unchanged = false;  // what the last such pack made is the answer where nothing has changed
};

struct RollbackCommand {
  model::Principal principal;
  std::string ref;
  std::string checkpoint;
  std::vector<std::string> layers;  // lowest first
  std::optional<std::uint64_t> fence;  // of the caller's lease
};

// A command and a file of who builds an image, in a sandbox of his.
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

// A bulk pause that stands: who matches it and was not there yet is held back.
struct Hold {
  HeldRecord record;
  model::Selector selector;
  std::size_t queued = 0;  // whom it holds back, among others
};

struct ListQuery {
  std::string selector;
  std::string state;  // "" = every state but ended; "all"; or one state
  std::size_t limit = 100;
  std::string cursor;
};

struct SandboxPage {
  std::vector<model::Sandbox> items;
  std::string next_cursor;
};

// How full the node is and what it can do.
struct EdgeLoad {
  std::string node;
  bool accepting = true;
  std::vector<std::string> backends;
  std::uint64_t sandboxes = 0;
  std::uint64_t most_sandboxes = 0;
  std::uint64_t memory_mb = 0;
  std::uint64_t most_memory_mb = 0;  // 0 = no limit
};

struct DetectedServices {
  std::vector<model::ServiceDefinition> services;
  std::vector<std::string> notes;
};

class Edge final : public SandboxOwner {
 public:
  struct Options {
    std::string data_directory;  // the node's; the edge's own is edge/ below it
    std::string node = "local";
    std::uint16_t unit = 0;
    std::uint16_t node_number = 0;
    Limits limits;
  };
  // All outlive the edge. `layers` is nullptr where no backend needs any (fakes).
  struct Parts {
    boost::asio::io_context& io;
    const Clock& clock;
    Random& random;
    std::map<std::string, backend::Backend*> backends;
    image::LayerStore* layers = nullptr;
    UpperPools& uppers;
    EgressResolver& resolver;
    store::Store* history = nullptr;  // of ended sandboxes; nullptr: they are forgotten
    image::DataFaults* data_faults = nullptr;  // nullptr where all data is whole on the node
    image::Importer* importer = nullptr;       // nullptr: nothing is packed here
  };

  // Reads the log. Blocks; before the loop runs.
  static Result<std::unique_ptr<Edge>> open(Parts parts, Options options);
  ~Edge() override;

  // Takes up every live sandbox again and removes what belongs to none. Requests
  // may be served meanwhile. Starts the housekeeping.
  asio::awaitable<void> recover();
  // Takes nothing new and answers whoever waits for something, before the requests are drained.
  void begin_stop();
  enum class Sandboxes { kKeep, kStop };
  // Lets go of the sandboxes, or ends them. Afterwards the loop has no work of the edge.
  asio::awaitable<void> stop(Sandboxes sandboxes);

  asio::awaitable<Result<model::Sandbox>> create(CreateCommand command);
  // What a running sandbox has written, as a new layer. kConflict for one that does
  // not run, kUnsupported where the node makes no layers.
  asio::awaitable<Result<model::LayerRecord>> pack(PackCommand command);
  // To the command's end. What is printed faster than it is read is kept to the limit of a command.
  asio::awaitable<Result<CommandEnd>> run_command(CommandOrder order);
  asio::awaitable<Result<void>> put_file(FileOrder order);
  // kConflict for a sandbox that does not run; after another error it has ended.
  asio::awaitable<Result<model::Sandbox>> rollback(RollbackCommand command);
  // How it went for each, in the order of creation; once all are done, or at the deadline.
  // What was begun by then goes on; resumes that were not are given up. A pause holds
  // back who comes later, until the resume with the same selector.
  asio::awaitable<Result<std::vector<BulkResult>>> bulk(BulkCommand command);
  // Of a project, oldest first.
  std::vector<Hold> holds(const std::string& project) const;
  // Memory and history as one, in the order of creation. kInvalidArgument for a
  // selector, state or cursor that is none.
  asio::awaitable<Result<SandboxPage>> list(model::Principal principal, ListQuery query);
  asio::awaitable<void> serve(net::Exchange& exchange, model::Principal principal, std::string ref, std::vector<std::string> rest);
  asio::awaitable<void> serve_port_host(net::Exchange& exchange, std::string sandbox_id, std::uint16_t port);
  void set_services(std::vector<model::ServiceDefinition> services);
  // TCP ports of the node where the platform listens; sandboxes do not reach them.
  void set_platform_ports(std::vector<std::uint16_t> ports) { egress_->set_platform_ports(std::move(ports)); }
  asio::awaitable<Result<DetectedServices>> detect_services();
  EdgeLoad load() const;
  std::string node_json() const;

  // Everything that happens to sandboxes of a project ("" = all), from `after` on,
  // as far as it is remembered. Waits until there is something, or until `by`.
  asio::awaitable<std::vector<SandboxEvent>> events(std::string project, std::uint64_t after, Instant by);
  std::uint64_t last_event() const { return next_event_ - 1; }
  // Digests that sandboxes which are not over are made of.
  bool uses_layer(const std::string& digest) const;
  // By digest: their ids.
  std::map<std::string, std::vector<std::string>> layer_users() const;
  // How many sandboxes are not over.
  std::size_t live() const { return live_; }

  Result<std::shared_ptr<LiveSandbox>> find(const model::Principal& principal, const std::string& ref) const;
  Context& context() { return context_; }

 private:
  struct KnownKey {
    std::string sandbox_id;
    std::string fingerprint;
    std::int64_t at_ms = 0;
  };

  Edge(Parts parts, Options options);

  Result<Launched> launch_blocking(const AcceptedRecord& accepted, Deadline deadline) override;
  void publish(SandboxEvent& event) override;
  void note_data_faults() override;
  void note_earlier_data_faults(LiveSandbox& sandbox) override;
  void mark_if_met(LiveSandbox& sandbox, const image::DataFault& fault, bool gone) const;
  void on_sandbox_changed(LiveSandbox& sandbox) override;
  asio::awaitable<Result<void>> connect_network(std::shared_ptr<LiveSandbox> sandbox) override;
  void disconnect_network(LiveSandbox& sandbox) override;
  Result<void> check_network(const model::Network& network) const override;
  std::map<std::string, std::string> network_environment(const LiveSandbox& sandbox) const override;
  Result<model::LayerRecord> pack_blocking(const AcceptedRecord& accepted, backend::Instance& instance, image::PackOptions options,
                                           const std::function<void()>& thawed, LastPack* last) override;
  Result<model::LayerRecord> pack_from_memory(backend::Instance& instance, image::PackOptions options, const UpperLayer& upper,
                                              const std::function<void()>& thawed);
  Result<backend::WrittenSize> written_size(const std::string& sandbox_id, backend::Instance& instance) override;
  Result<void> remove_upper(const std::string& sandbox_id, const std::string& upper_record) override;
  asio::awaitable<Result<void>> forget_on_request(std::string sandbox_id) override;

  Result<void> replay(std::uint8_t type, std::string_view body);
  Result<void> replay_hold(WalType type, std::string_view body);
  Result<void> begin_hold(const BulkCommand& command);
  Result<void> end_hold(const BulkCommand& command);
  // nullptr where nothing holds such a sandbox back.
  const Hold* holding(const std::string& project, const std::map<std::string, std::string>& labels) const;
  struct BulkWork;
  asio::awaitable<void> work_off(std::shared_ptr<BulkWork> work);
  asio::awaitable<Result<void>> act_on(std::shared_ptr<LiveSandbox> sandbox, BulkCommand command, Instant by);
  asio::awaitable<std::size_t> resumes_at_once();
  Result<void> finish_replay();
  void sweep_uppers();
  Result<void> admit(const model::SandboxSpec& spec) const;
  // edge_memory.cc
  asio::awaitable<void> look_at_memory();
  asio::awaitable<void> sample_memory();
  void carry_out(const BrakeAction& action);
  void trim_idle();
  boost::json::object memory_json() const;
  void insert(std::shared_ptr<LiveSandbox> sandbox);
  void forget(const std::string& id);
  void drop(const std::string& id);
  asio::awaitable<void> erase_forgotten();
  void sweep_output() const;
  void forget_oldest(std::deque<std::string>& ended, std::size_t most);
  void remember_key(const std::string& name, KnownKey key);
  void forget_old_keys();
  asio::awaitable<void> save_ended();
  asio::awaitable<Result<std::optional<model::Sandbox>>> find_past(std::string project, std::string ref, std::shared_ptr<LiveSandbox> found);
  asio::awaitable<Result<void>> serve_past(net::Exchange& exchange, model::Sandbox past);
  asio::awaitable<void> wait_for_start(std::shared_ptr<LiveSandbox> sandbox, std::shared_ptr<bool> committed, Instant by);
  asio::awaitable<void> keep_house();
  asio::awaitable<void> adopt_later(std::shared_ptr<LiveSandbox> sandbox);
  asio::awaitable<void> compact_log();
  Result<EgressPolicy> policy_for(const model::Network& network) const;
  EgressPolicy policy_in_force(const LiveSandbox& sandbox) const;
  // What a request has to find before it is carried out: a payload that runs, where it needs one.
  asio::awaitable<Result<void>> make_ready(const net::HttpRequest& request, std::shared_ptr<LiveSandbox> sandbox, std::vector<std::string> rest);
  asio::awaitable<Result<void>> serve_live(net::Exchange& exchange, const model::Principal& principal, std::shared_ptr<LiveSandbox> sandbox,
                                           std::vector<std::string> rest);
  asio::awaitable<Result<void>> route(net::Exchange& exchange, std::shared_ptr<LiveSandbox> sandbox, std::vector<std::string> rest);

  Parts parts_;
  const Options options_;
  std::unique_ptr<Wal> wal_;
  std::unique_ptr<sys::WorkerPool> launches_;
  std::unique_ptr<sys::WorkerPool> calls_;
  std::unique_ptr<sys::WorkerPool> packs_;
  std::unique_ptr<sys::WorkerPool> freezes_;
  std::unique_ptr<sys::WorkerPool> reclaims_;
  std::unique_ptr<model::SandboxIdSeal> seal_;
  Context context_;
  std::unique_ptr<EgressProxy> egress_;
  std::vector<model::ServiceDefinition> services_;
  std::map<std::string, EgressPolicy> policies_;  // by sandbox, mode proxy

  std::map<std::string, std::shared_ptr<LiveSandbox>> by_id_;
  std::map<std::pair<std::int64_t, std::string>, LiveSandbox*> by_time_;
  std::map<std::string, Hold> holds_;  // by id of the record
  std::map<std::pair<std::string, std::string>, std::string> names_;  // (project, name) of live ones
  std::unordered_map<std::string, KnownKey> keys_;                    // project NUL key
  std::deque<std::string> key_order_;                                 // of keys_, oldest first
  std::deque<std::string> ended_;                                     // oldest end first, but those of deleted_
  std::deque<std::string> deleted_;                                   // ended on request
  std::vector<model::Sandbox> unsaved_;                               // ended, not in the history yet
  std::int64_t history_trimmed_ms_ = 0;
  std::set<std::string> erasing_;                                     // forgotten on request, perhaps in the history still
  Notifier erased_;
  std::size_t live_ = 0;
  std::uint64_t memory_committed_mb_ = 0;
  std::uint64_t counter_ = 0;
  std::string boot_id_;
  std::string last_boot_id_;  // of the log
  Brake brake_;
  sys::NodeMemory node_memory_;
  bool memory_untold_ = false;
  std::uint64_t brake_trims_ = 0;
  std::uint64_t brake_pauses_ = 0;
  std::uint64_t brake_ends_ = 0;
  std::uint64_t creates_ = 0;
  std::uint64_t create_failures_ = 0;
  std::uint64_t execs_ = 0;

  static constexpr std::size_t kEventsKept = 8192;
  std::deque<SandboxEvent> events_;
  std::uint64_t next_event_ = 1;
  Notifier events_changed_;
  bool recovering_ = false;
  bool recovered_ = false;
  std::vector<image::DataFault> early_faults_;  // found while sandboxes were being taken up
  bool house_open_ = false;
  Notifier house_;
};

}  // namespace dsec::edge
