#include "edge/edge.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/encoding.h"
#include "base/fail_point.h"
#include "base/log.h"
#include "edge/service_detect.h"
#include "model/json.h"
#include "model/json_text.h"
#include "model/sha256.h"
#include "net/blocking.h"

namespace dsec::edge {

using model::SandboxState;

namespace {

std::string spec_fingerprint(const model::SandboxSpec& spec, const std::vector<std::string>& digests) {
  std::string text = boost::json::serialize(model::to_json(spec));
  for (const std::string& digest : digests) text += "\n" + digest;
  return model::sha256(text);
}

std::string key_name(const std::string& project, const std::string& key) { return project + '\0' + key; }

}  // namespace

Edge::Edge(Parts parts, Options options)
    : parts_(std::move(parts)),
      options_(std::move(options)),
      launches_(std::make_unique<sys::WorkerPool>(sys::WorkerPool::Options{.name = "edge-launch", .threads = 8, .queue_limit = 8192})),
      calls_(std::make_unique<sys::WorkerPool>(sys::WorkerPool::Options{.name = "edge-calls", .threads = 4, .queue_limit = 16384})),
      packs_(std::make_unique<sys::WorkerPool>(sys::WorkerPool::Options{.name = "edge-pack", .threads = 2, .queue_limit = 64})),
      freezes_(std::make_unique<sys::WorkerPool>(sys::WorkerPool::Options{.name = "edge-freeze", .threads = 8, .queue_limit = 16384})),
      reclaims_(std::make_unique<sys::WorkerPool>(sys::WorkerPool::Options{.name = "edge-reclaim", .threads = 2, .queue_limit = 16384})),
      context_{.io = parts_.io,
               .clock = parts_.clock,
               .random = parts_.random,
               .wal = nullptr,
               .launches = *launches_,
               .calls = *calls_,
               .packs = *packs_,
               .freezes = *freezes_,
               .reclaims = *reclaims_,
               .limits = options_.limits,
               .sandbox_directory = options_.data_directory + "/edge/sandboxes"},
      brake_({.reserve_bytes = options_.limits.memory_reserve_mb << 20}) {
  egress_ = std::make_unique<EgressProxy>(parts_.io, parts_.resolver, parts_.clock, EgressProxy::Options{}, [this](const EgressEvent& event) {
    if (event.kind == EgressEvent::Kind::kClosed) return;
    const auto found = by_id_.find(event.sandbox_id);
    if (found == by_id_.end()) return;
    // Not in the log: how many there are is up to who is inside.
    found->second->keep_event(event.allowed ? "egress_allowed" : "egress_refused",
                              fmt::format("{} {}:{}: {}", to_string(event.kind), event.host, event.port, event.reason));
  });
}

Edge::~Edge() {
  for (const auto& [id, sandbox] : by_id_) sandbox->let_go();
  // Jobs in flight hold sandboxes, which refer to this object.
  packs_.reset();
  reclaims_.reset();
  freezes_.reset();
  launches_.reset();
  calls_.reset();
}

void Edge::insert(std::shared_ptr<LiveSandbox> sandbox) {
  by_time_[{sandbox->view().created_at_ms, sandbox->id()}] = sandbox.get();
  by_id_[sandbox->id()] = std::move(sandbox);
}

Result<void> Edge::admit(const model::SandboxSpec& spec) const {
  const Limits& limits = options_.limits;
  if (context_.stopping) return Error(ErrorCode::kUnavailable, "the node is stopping");
  if (live_ >= limits.max_live) return Error(ErrorCode::kExhausted, fmt::format("the node runs {} sandboxes, its limit", live_));
  if (!brake_.refusal().empty()) return Error(ErrorCode::kExhausted, brake_.refusal());
  const auto memory = static_cast<std::uint64_t>(spec.resources.memory_mb);
  if (limits.memory_commit_mb > 0 && memory_committed_mb_ + memory > limits.memory_commit_mb)
    return Error(ErrorCode::kExhausted, fmt::format("memory: {} MiB of {} MiB are promised, {} MiB more do not fit", memory_committed_mb_,
                                                    limits.memory_commit_mb, memory));
  return {};
}

asio::awaitable<Result<model::Sandbox>> Edge::create(CreateCommand command) {
  model::SandboxSpec& spec = command.spec;
  DSEC_CO_TRY(model::validate(spec));
  const auto backend = parts_.backends.find(spec.backend);
  if (backend == parts_.backends.end())
    co_return Error(ErrorCode::kUnsupported, "backend: \"" + spec.backend + "\" is not there on this node");
  if (spec.network.mode == model::NetworkMode::kDevice)
    co_return Error(ErrorCode::kUnsupported, "network.mode: this version has no network devices; use proxy");

  std::vector<std::string> digests;
  for (const model::LayerRecord& layer : command.layers.layers) {
    if (layer.kind == model::LayerKind::kVerifier) co_return Error(ErrorCode::kPermissionDenied, "no sandbox is made of a verifier layer");
    digests.push_back(layer.digest);
  }
  const std::string print = spec_fingerprint(spec, digests);
  const Instant by = context_.clock.now() + command.wait;
  if (!command.idempotency_key.empty()) {
    const auto known = keys_.find(key_name(command.principal.project, command.idempotency_key));
    if (known != keys_.end() && context_.now_ms() - known->second.at_ms < std::chrono::duration_cast<std::chrono::milliseconds>(options_.limits.keep_keys).count()) {
      if (known->second.fingerprint != print)
        co_return Error(ErrorCode::kConflict, "the idempotency key belongs to another create: nothing was made");
      const std::string id = known->second.sandbox_id;
      const auto found = by_id_.find(id);
      if (found == by_id_.end() && parts_.history != nullptr) {
        DSEC_CO_ASSIGN(const std::optional<model::Sandbox> past,
                       co_await net::on_pool(*calls_, [store = parts_.history, project = command.principal.project, id] {
                         return store->past(project, id);
                       }));
        if (past && !erasing_.contains(id)) co_return *past;
        co_return Error(ErrorCode::kConflict, "the sandbox of this idempotency key, " + id + ", has ended and was forgotten");
      }
      if (found == by_id_.end())
        co_return Error(ErrorCode::kConflict, "the sandbox of this idempotency key, " + id + ", has ended and was forgotten");
      const std::shared_ptr<LiveSandbox> sandbox = found->second;
      co_await wait_for_start(sandbox, std::make_shared<bool>(true), by);
      co_return sandbox->view();
    }
  }
  DSEC_CO_TRY(admit(spec));
  if (!spec.name.empty() && names_.contains({command.principal.project, spec.name}))
    co_return Error(ErrorCode::kConflict, "name: \"" + spec.name + "\" is taken by a live sandbox");
  DSEC_CO_TRY(check_network(spec.network));

  AcceptedRecord accepted{.id = seal_->seal({.unit = options_.unit,
                                             .node = options_.node_number,
                                             .epoch = static_cast<std::uint32_t>(context_.epoch),
                                             .counter = ++counter_}),
                          .project = command.principal.project,
                          .spec = spec,
                          .layer_digests = std::move(digests),
                          .config = command.layers.config,
                          .idempotency_key = command.idempotency_key,
                          .fingerprint = print,
                          .secret = context_.random.bytes(32),
                          .created_at_ms = context_.now_ms()};
  Result<std::uint64_t> logged = context_.log(WalType::kAccepted, accepted);
  if (!logged.ok()) co_return std::move(logged).error();
  DSEC_CO_TRY(fail_point("edge.accepted"));
  ++creates_;

  // The commit and the launch go on side by side; the answer waits for both. A
  // sandbox dies with the machine: only a key has to outlive it.
  const auto committed = std::make_shared<bool>(command.idempotency_key.empty());
  const auto sandbox = std::make_shared<LiveSandbox>(context_, *this, std::move(accepted), options_.node);
  insert(sandbox);
  ++live_;
  memory_committed_mb_ += static_cast<std::uint64_t>(spec.resources.memory_mb);
  if (!spec.name.empty()) names_[{sandbox->project(), spec.name}] = sandbox->id();
  if (!command.idempotency_key.empty())
    remember_key(key_name(sandbox->project(), command.idempotency_key), {sandbox->id(), print, sandbox->view().created_at_ms});
  if (!*committed) {
    wal_->commit(*logged, [io = &parts_.io, sandbox, committed](Result<void> outcome) {
      asio::post(*io, [sandbox, committed, outcome = std::move(outcome)] {
        *committed = true;
        if (!outcome.ok()) sandbox->begin_end(model::EndCause::kStartFailed, outcome.error().message());
        sandbox->changed().notify();
      });
    });
  }
  sandbox->note_event("accepted", "");
  if (const Hold* hold = holding(sandbox->project(), spec.labels))
    sandbox->hold(hold->record.selector.empty() ? "all sandboxes of the project are paused" : "paused: " + hold->record.selector);
  asio::co_spawn(parts_.io, [sandbox] { return sandbox->launch(); }, asio::detached);

  co_await wait_for_start(sandbox, committed, by);
  if (sandbox->over() && sandbox->view().started_at_ms == 0) {
    ++create_failures_;
    const model::Sandbox& view = sandbox->view();
    const ErrorCode code = view.cause == model::EndCause::kPressure ? ErrorCode::kExhausted
                           : view.cause == model::EndCause::kUser   ? ErrorCode::kConflict
                           : view.cause == model::EndCause::kExit   ? ErrorCode::kInvalidArgument
                                                                    : ErrorCode::kUnavailable;
    co_return Error(code, fmt::format("sandbox {} did not start: {}", view.id, view.end_detail));
  }
  co_return sandbox->view();
}

asio::awaitable<void> Edge::wait_for_start(std::shared_ptr<LiveSandbox> sandbox, std::shared_ptr<bool> committed, Instant by) {
  const auto held = [&] { return sandbox->held() && !context_.stopping; };
  while ((held() || sandbox->state() == SandboxState::kStarting || !*committed) && context_.clock.now() < by) co_await sandbox->changed().wait(by);
}

Result<std::shared_ptr<LiveSandbox>> Edge::find(const model::Principal& principal, const std::string& ref) const {
  if (const auto exact = by_id_.find(ref); exact != by_id_.end() && exact->second->project() == principal.project) return exact->second;
  if (const auto named = names_.find({principal.project, ref}); named != names_.end()) return by_id_.at(named->second);
  // The name of one that has ended means the newest of that name.
  std::shared_ptr<LiveSandbox> found;
  if (ref.size() >= 4) {
    for (auto at = by_id_.lower_bound(ref); at != by_id_.end() && at->first.starts_with(ref); ++at) {
      if (at->second->project() != principal.project) continue;
      if (found) return Error(ErrorCode::kConflict, "\"" + ref + "\" is the beginning of more than one sandbox id");
      found = at->second;
    }
  }
  if (found) return found;
  for (const std::deque<std::string>* ended : {&ended_, &deleted_})
    for (auto at = ended->rbegin(); at != ended->rend(); ++at) {
      const auto sandbox = by_id_.find(*at);
      if (sandbox == by_id_.end() || sandbox->second->project() != principal.project || sandbox->second->view().spec.name != ref || ref.empty()) continue;
      if (!found || sandbox->second->view().ended_at_ms > found->view().ended_at_ms) found = sandbox->second;
      break;
    }
  if (found) return found;
  return Error(ErrorCode::kNotFound, "there is no sandbox \"" + ref.substr(0, 64) + "\"");
}

void Edge::publish(SandboxEvent& event) {
  event.sequence = next_event_++;
  events_.push_back(event);
  if (events_.size() > kEventsKept) events_.pop_front();
  events_changed_.notify();
}

void Edge::note_data_faults() {
  if (parts_.data_faults == nullptr || parts_.layers == nullptr) return;
  for (image::DataFault& fault : parts_.data_faults->take_new()) {
    for (const auto& [id, sandbox] : by_id_) mark_if_met(*sandbox, fault, false);
    // Whoever is not taken up yet is asked again then.
    if (!recovered_) early_faults_.push_back(std::move(fault));
  }
}

void Edge::note_earlier_data_faults(LiveSandbox& sandbox) {
  note_data_faults();
  const bool gone = sandbox.instance() == nullptr;
  for (const image::DataFault& fault : early_faults_) mark_if_met(sandbox, fault, gone);
}

// Of one that is gone nobody can say where its processes were.
void Edge::mark_if_met(LiveSandbox& sandbox, const image::DataFault& fault, bool gone) const {
  const model::Sandbox& view = sandbox.view();
  // A place in the cgroups has other users before and after.
  if (fault.at_ms < view.created_at_ms || (sandbox.instance() == nullptr && !gone)) return;
  if (!gone && !fault.cgroup.empty() && !sandbox.instance()->owns_cgroup(fault.cgroup)) return;
  const std::vector<std::string> layers = parts_.layers->layers_with_data(fault.data);
  const bool uses = std::any_of(layers.begin(), layers.end(), [&](const std::string& digest) {
    return std::find(view.layer_digests.begin(), view.layer_digests.end(), digest) != view.layer_digests.end();
  });
  if (uses) sandbox.mark_data_fault(fault.at_ms, fault.why);
}

asio::awaitable<std::vector<SandboxEvent>> Edge::events(std::string project, std::uint64_t after, Instant by) {
  std::vector<SandboxEvent> out;
  while (true) {
    auto at = std::upper_bound(events_.begin(), events_.end(), after, [](std::uint64_t sequence, const SandboxEvent& event) { return sequence < event.sequence; });
    for (; at != events_.end() && out.size() < 256; ++at)
      if (project.empty() || at->project == project) out.push_back(*at);
    if (!out.empty() || context_.clock.now() >= by || context_.stopping) co_return out;
    if (!events_.empty()) after = events_.back().sequence;
    co_await events_changed_.wait(by);
  }
}

void Edge::on_sandbox_changed(LiveSandbox& sandbox) {
  if (sandbox.state() != SandboxState::kEnded) {
    if (!sandbox.over() && policies_.contains(sandbox.id())) {
      EgressPolicy policy = policy_in_force(sandbox);
      policies_[sandbox.id()] = policy;
      if (Result<void> updated = egress_->update(sandbox.id(), std::move(policy)); !updated.ok())
        log_warning("a network policy was not updated", {{"sandbox", sandbox.id()}, {"why", updated.error().message()}});
    }
    return;
  }
  --live_;
  memory_committed_mb_ -= static_cast<std::uint64_t>(sandbox.view().spec.resources.memory_mb);
  const auto named = names_.find({sandbox.project(), sandbox.view().spec.name});
  if (named != names_.end() && named->second == sandbox.id()) names_.erase(named);
  // The housekeeping forgets it, once the history has it.
  (sandbox.view().cause == model::EndCause::kUser ? deleted_ : ended_).push_back(sandbox.id());
  if (parts_.history != nullptr) unsaved_.push_back(sandbox.view());
}

void Edge::remember_key(const std::string& name, KnownKey key) {
  if (keys_.insert_or_assign(name, std::move(key)).second) key_order_.push_back(name);
  if (key_order_.size() > options_.limits.max_keys) forget_old_keys();
}

void Edge::forget_old_keys() {
  const auto keep = std::chrono::duration_cast<std::chrono::milliseconds>(options_.limits.keep_keys).count();
  while (!key_order_.empty()) {
    const auto oldest = keys_.find(key_order_.front());
    if (oldest != keys_.end() && key_order_.size() <= options_.limits.max_keys && context_.now_ms() - oldest->second.at_ms <= keep) return;
    if (oldest != keys_.end()) keys_.erase(oldest);
    key_order_.pop_front();
  }
}

bool Edge::uses_layer(const std::string& digest) const {
  for (const auto& [id, sandbox] : by_id_) {
    const std::vector<std::string>& digests = sandbox->view().layer_digests;
    if (sandbox->state() != SandboxState::kEnded && std::find(digests.begin(), digests.end(), digest) != digests.end()) return true;
  }
  return false;
}

std::map<std::string, std::vector<std::string>> Edge::layer_users() const {
  std::map<std::string, std::vector<std::string>> out;
  for (const auto& [id, sandbox] : by_id_) {
    if (sandbox->state() == SandboxState::kEnded) continue;
    for (const std::string& digest : sandbox->view().layer_digests) out[digest].push_back(id);
  }
  return out;
}

asio::awaitable<Result<DetectedServices>> Edge::detect_services() {
  co_return co_await net::on_pool(*calls_, []() -> Result<DetectedServices> {
    NodeClientRunner runner;
    ServiceDetection found = edge::detect_services(runner, node_surroundings());
    return DetectedServices{std::move(found.services), std::move(found.notes)};
  });
}

EdgeLoad Edge::load() const {
  EdgeLoad out{.node = options_.node,
               .accepting = !context_.stopping,
               .backends = {},
               .sandboxes = live_,
               .most_sandboxes = options_.limits.max_live,
               .memory_mb = memory_committed_mb_,
               .most_memory_mb = options_.limits.memory_commit_mb};
  for (const auto& [name, backend] : parts_.backends) out.backends.push_back(name);
  return out;
}

std::string Edge::node_json() const {
  std::size_t queued = 0, running = 0, starting = 0, paused = 0, ending = 0, execs = 0;
  for (const auto& [id, sandbox] : by_id_) {
    queued += sandbox->state() == SandboxState::kQueued;
    paused += sandbox->state() == SandboxState::kPaused;
    running += sandbox->state() == SandboxState::kRunning;
    starting += sandbox->state() == SandboxState::kStarting;
    ending += sandbox->state() == SandboxState::kEnding;
    execs += sandbox->running_execs();
  }
  boost::json::object backends;
  for (const auto& [name, backend] : parts_.backends) {
    const backend::Capabilities has = backend->capabilities();
    boost::json::object entry{{"available", has.available}};
    if (!has.reason.empty()) entry["reason"] = has.reason;
    boost::json::array notes;
    for (const std::string& note : has.notes) notes.emplace_back(note);
    entry["notes"] = std::move(notes);
    backends[name] = std::move(entry);
  }
  return model::json_text(boost::json::object{
      {"name", options_.node},
      {"epoch", context_.epoch},
      {"recovered", recovered_},
      {"sandboxes", boost::json::object{{"live", live_}, {"running", running}, {"starting", starting}, {"queued", queued}, {"paused", paused}, {"ending", ending}, {"remembered", ended_.size() + deleted_.size()}}},
      {"limits", boost::json::object{{"sandboxes", options_.limits.max_live}, {"memory_mb", options_.limits.memory_commit_mb}}},
      {"memory_committed_mb", memory_committed_mb_},
      {"memory", memory_json()},
      {"holds", holds_.size()},
      {"running_execs", execs},
      {"counters", boost::json::object{{"creates", creates_}, {"create_failures", create_failures_}, {"execs", execs_}}},
      {"log_bytes", wal_->bytes()},
      {"upper", parts_.uppers.describe()},
      {"backends", std::move(backends)},
  });
}

}  // namespace dsec::edge
