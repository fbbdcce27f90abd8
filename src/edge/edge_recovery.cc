// Start and stop of an edge: the log is replayed, live sandboxes are taken up
// again, and what a crash left between two records is removed.
//
// The order matters. First every record is read. Then each sandbox that is not
// over is adopted by its backend record; the host says whether it still runs.
// Then the backends sweep what no live record names: launches that were cut
// before their record was written. Ended sandboxes keep their cause.

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "base/fail_point.h"
#include "base/log.h"
#include "edge/edge.h"
#include "edge/live_records.h"
#include "net/blocking.h"
#include "sys/file.h"

namespace dsec::edge {

using model::SandboxState;

namespace {

constexpr auto kHousePeriod = std::chrono::seconds(1);
constexpr auto kSweepPatience = std::chrono::seconds(20);

Result<model::SandboxIdSeal::Key> seal_key(const std::string& path, Random& random) {
  Result<std::string> text = sys::read_file(path, 64);
  if (!text.ok()) {
    if (text.error().error_number() != ENOENT) return std::move(text).error();
    text = random.bytes(16);
    DSEC_TRY(sys::replace_file(path, *text, 0600));
  }
  model::SandboxIdSeal::Key key;
  if (text->size() != key.size()) return Error(ErrorCode::kDataFault, path + " is not a key of 16 bytes");
  std::copy(text->begin(), text->end(), key.begin());
  return key;
}

}  // namespace

Result<std::unique_ptr<Edge>> Edge::open(Parts parts, Options options) {
  DSEC_TRY(sys::make_directories(options.data_directory + "/edge/sandboxes", 0700));
  std::unique_ptr<Edge> edge(new Edge(std::move(parts), std::move(options)));
  DSEC_ASSIGN(const model::SandboxIdSeal::Key key, seal_key(edge->options_.data_directory + "/edge/seal.key", edge->parts_.random));
  edge->seal_ = std::make_unique<model::SandboxIdSeal>(key, 0);
  DSEC_ASSIGN(std::string boot, sys::read_file("/proc/sys/kernel/random/boot_id", 64));
  while (!boot.empty() && boot.back() == '\n') boot.pop_back();
  edge->boot_id_ = std::move(boot);
  DSEC_ASSIGN(edge->wal_, Wal::open({.directory = edge->options_.data_directory + "/edge/wal"},
                                    [log = edge.get()](std::uint8_t type, std::string_view body) { return log->replay(type, body); })
                              .within("read the edge log"));
  edge->context_.wal = edge->wal_.get();
  DSEC_TRY(edge->finish_replay());
  edge->sweep_uppers();
  edge->sweep_output();
  ++edge->context_.epoch;
  DSEC_TRY(edge->context_.log(WalType::kEdgeStart, EdgeStartRecord{.epoch = edge->context_.epoch,
                                                                   .boot_id = edge->boot_id_,
                                                                   .at_ms = edge->context_.now_ms()}));
  // Ids are made of the epoch: no crash of the machine may bring it back.
  DSEC_TRY(edge->wal_->sync());
  return edge;
}

Result<void> Edge::replay(std::uint8_t type, std::string_view body) {
  const auto kind = static_cast<WalType>(type);
  if (kind == WalType::kEdgeStart) {
    DSEC_ASSIGN(const EdgeStartRecord record, decode_record<EdgeStartRecord>(body));
    context_.epoch = std::max(context_.epoch, record.epoch);
    last_boot_id_ = record.boot_id;
    return {};
  }
  if (kind == WalType::kAccepted) {
    DSEC_ASSIGN(AcceptedRecord record, decode_record<AcceptedRecord>(body));
    if (!record.idempotency_key.empty())
      remember_key(record.project + '\0' + record.idempotency_key, {record.id, record.fingerprint, record.created_at_ms});
    insert(std::make_shared<LiveSandbox>(context_, *this, std::move(record), options_.node));
    return {};
  }
  if (kind == WalType::kHeld || kind == WalType::kHoldEnded) return replay_hold(kind, body);
  DSEC_ASSIGN(const std::string id, sandbox_of(body));
  if (kind == WalType::kForgotten) {
    DSEC_ASSIGN(const ForgottenRecord record, decode_record<ForgottenRecord>(body));
    if (record.erase) erasing_.insert(id);
  }
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return {};  // its acceptance was compacted away: it is forgotten
  LiveSandbox& sandbox = *found->second;
  switch (kind) {
    case WalType::kLaunched: {
      DSEC_ASSIGN(const LaunchedRecord record, decode_record<LaunchedRecord>(body));
      sandbox.restore_launched(record);
      return {};
    }
    case WalType::kStarted: {
      DSEC_ASSIGN(const StartedRecord record, decode_record<StartedRecord>(body));
      sandbox.restore_started(record);
      return {};
    }
    case WalType::kTransition: {
      DSEC_ASSIGN(const TransitionRecord record, decode_record<TransitionRecord>(body));
      sandbox.restore_transition(record);
      return {};
    }
    case WalType::kPatched: {
      DSEC_ASSIGN(const PatchedRecord record, decode_record<PatchedRecord>(body));
      sandbox.restore_patched(record);
      return {};
    }
    case WalType::kPaused: {
      DSEC_ASSIGN(const PausedRecord record, decode_record<PausedRecord>(body));
      sandbox.restore_paused(record);
      return {};
    }
    case WalType::kResumed: {
      DSEC_ASSIGN(const ResumedRecord record, decode_record<ResumedRecord>(body));
      sandbox.restore_resumed(record);
      return {};
    }
    case WalType::kFenced: {
      DSEC_ASSIGN(const FencedRecord record, decode_record<FencedRecord>(body));
      sandbox.restore_fenced(record);
      return {};
    }
    case WalType::kDataFault: {
      DSEC_ASSIGN(const DataFaultRecord record, decode_record<DataFaultRecord>(body));
      sandbox.restore_data_fault(record);
      return {};
    }
    case WalType::kEvent: {
      DSEC_ASSIGN(EventRecord record, decode_record<EventRecord>(body));
      next_event_ = std::max(next_event_, record.sequence + 1);
      events_.push_back(sandbox.restore_event(std::move(record)));
      if (events_.size() > kEventsKept) events_.pop_front();
      return {};
    }
    case WalType::kRolledBack: {
      DSEC_ASSIGN(const RolledBackRecord record, decode_record<RolledBackRecord>(body));
      sandbox.restore_rolled_back(record);
      return {};
    }
    case WalType::kOpAccepted: {
      DSEC_ASSIGN(const OpAcceptedRecord record, decode_record<OpAcceptedRecord>(body));
      sandbox.restore_op(record);
      return {};
    }
    case WalType::kOpFinished: {
      DSEC_ASSIGN(OpFinishedRecord record, decode_record<OpFinishedRecord>(body));
      sandbox.restore_result(std::move(record));
      return {};
    }
    case WalType::kEnded: {
      DSEC_ASSIGN(const EndedRecord record, decode_record<EndedRecord>(body));
      sandbox.restore_ended(record);
      (record.cause == model::EndCause::kUser ? deleted_ : ended_).push_back(id);
      return {};
    }
    case WalType::kForgotten:
      std::erase_if(events_, [&](const SandboxEvent& event) { return event.sandbox_id == id; });
      by_time_.erase({sandbox.view().created_at_ms, id});
      std::erase(found->second->view().cause == model::EndCause::kUser ? deleted_ : ended_, id);
      by_id_.erase(found);
      return {};
    default: return Error(ErrorCode::kUnsupported, "a record of type " + std::to_string(type) + " is of a newer program");
  }
}

Result<void> Edge::finish_replay() {
  for (const auto& [id, sandbox] : by_id_) {
    sandbox->restore_spool();
    if (sandbox->state() == SandboxState::kEnded) {
      // Once more: whether the history had it before the crash is not known.
      if (parts_.history != nullptr) unsaved_.push_back(sandbox->view());
      continue;
    }
    ++live_;
    memory_committed_mb_ += static_cast<std::uint64_t>(sandbox->view().spec.resources.memory_mb);
    if (!sandbox->view().spec.name.empty()) names_[{sandbox->project(), sandbox->view().spec.name}] = id;
  }
  return {};
}

// Before the first create, whose layer would look like a left-over. Those of
// sandboxes that turn out to be over go with their end.
void Edge::sweep_uppers() {
  std::vector<std::string> live;
  for (const auto& [id, sandbox] : by_id_)
    if (sandbox->state() != SandboxState::kEnded && !sandbox->backend_record().empty()) live.push_back(id);
  const Result<std::size_t> swept = parts_.uppers.sweep(live);
  if (!swept.ok()) log_warning("left-over writable layers were not removed", {{"why", swept.error().message()}});
}

asio::awaitable<void> Edge::recover() {
  recovering_ = true;
  const bool same_boot = last_boot_id_ == boot_id_;
  std::vector<std::shared_ptr<LiveSandbox>> open;
  for (const auto& [id, sandbox] : by_id_)
    if (sandbox->state() != SandboxState::kEnded) open.push_back(sandbox);

  std::vector<std::shared_ptr<backend::Instance>> adopted(open.size());
  std::vector<bool> unknown(open.size());
  std::map<std::string, std::vector<std::string>> records;
  std::size_t live = 0;
  for (std::size_t i = 0; i < open.size(); ++i) {
    const std::shared_ptr<LiveSandbox>& sandbox = open[i];
    const auto backend = parts_.backends.find(sandbox->view().spec.backend);
    if (sandbox->held()) ++live;
    if (!same_boot || sandbox->backend_record().empty() || backend == parts_.backends.end()) continue;
    Result<std::unique_ptr<backend::Instance>> instance = co_await net::on_pool(
        *calls_, [adopter = backend->second, record = sandbox->backend_record()]() -> Result<std::unique_ptr<backend::Instance>> {
          DSEC_TRY(fail_point("edge.adopt"));
          return adopter->adopt(record);
        });
    if (!instance.ok() && instance.error().code() != ErrorCode::kNotFound) {
      // Not knowing is not knowing that it is gone: it is left alone and tried again.
      log_error("a sandbox cannot be adopted now", {{"sandbox", sandbox->id()}, {"why", instance.error().message()}});
      unknown[i] = true;
      records[backend->first].push_back(sandbox->backend_record());
      ++live;
      continue;
    }
    if (!instance.ok()) {
      log_info("a sandbox was not adopted", {{"sandbox", sandbox->id()}, {"why", instance.error().message()}});
      continue;
    }
    adopted[i] = std::move(instance).value();
    records[backend->first].push_back(sandbox->backend_record());
    ++live;
  }
  for (const auto& [name, backend] : parts_.backends) {
    const Result<std::size_t> swept =
        co_await net::on_pool(*launches_, [sweeper = backend, named = records[name]] { return sweeper->sweep(named); });
    if (!swept.ok())
      log_warning("left-overs of sandboxes were not removed", {{"backend", name}, {"why", swept.error().message()}});
    else if (*swept > 0)
      log_info("left-overs of sandboxes were removed", {{"backend", name}, {"count", std::to_string(*swept)}});
  }
  recovering_ = false;
  context_.swept = true;
  context_.swept_now.notify();

  for (std::size_t i = 0; i < open.size(); ++i)
    if (unknown[i]) asio::co_spawn(parts_.io, [this, sandbox = open[i]] { return adopt_later(sandbox); }, asio::detached);
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (unknown[i]) continue;
    // Of one that is held nothing was made yet: it goes on waiting.
    if (open[i]->held()) {
      asio::co_spawn(parts_.io, [sandbox = open[i]] { return sandbox->launch(); }, asio::detached);
      continue;
    }
    asio::co_spawn(
        parts_.io, [sandbox = open[i], instance = adopted[i], same_boot] { return sandbox->readopt(instance, same_boot); }, asio::detached);
  }
  if (!open.empty())
    log_info("sandboxes were taken up again", {{"live", std::to_string(live)}, {"lost", std::to_string(open.size() - live)}});
  recovered_ = true;
  early_faults_.clear();
  house_open_ = true;
  asio::co_spawn(parts_.io, [this] { return keep_house(); }, asio::detached);
}

asio::awaitable<void> Edge::adopt_later(std::shared_ptr<LiveSandbox> sandbox) {
  backend::Backend* backend = parts_.backends.at(sandbox->view().spec.backend);
  Duration pause = std::chrono::seconds(1);
  while (!context_.stopping && sandbox->state() != SandboxState::kEnded) {
    co_await house_.wait(context_.clock.now() + pause);
    if (context_.stopping || sandbox->state() == SandboxState::kEnded) co_return;
    pause = std::min<Duration>(pause * 2, std::chrono::seconds(30));
    Result<std::unique_ptr<backend::Instance>> instance = co_await net::on_pool(
        *calls_, [backend, record = sandbox->backend_record()]() -> Result<std::unique_ptr<backend::Instance>> {
          DSEC_TRY(fail_point("edge.adopt"));
          return backend->adopt(record);
        });
    if (!instance.ok() && instance.error().code() != ErrorCode::kNotFound) continue;
    std::shared_ptr<backend::Instance> adopted;
    if (instance.ok()) adopted = std::move(instance).value();
    co_return co_await sandbox->readopt(std::move(adopted), true);
  }
}

asio::awaitable<void> Edge::keep_house() {
  Instant next_tick = context_.clock.now() + kHousePeriod;
  while (!context_.stopping) {
    co_await house_.wait(next_tick);
    if (context_.stopping) break;
    // Who has a sandbox forgotten calls for a turn of its own: the others are not looked at for that.
    if (context_.clock.now() >= next_tick) {
      next_tick = context_.clock.now() + kHousePeriod;
      std::vector<std::shared_ptr<LiveSandbox>> all;
      all.reserve(by_id_.size());
      for (const auto& [id, sandbox] : by_id_) all.push_back(sandbox);
      note_data_faults();
      for (const std::shared_ptr<LiveSandbox>& sandbox : all) sandbox->tick();
      all.clear();
      co_await look_at_memory();
    }

    co_await save_ended();
    co_await erase_forgotten();
    forget_oldest(ended_, options_.limits.max_ended);
    forget_oldest(deleted_, options_.limits.max_deleted);
    forget_old_keys();
    // The record is what a start knows of an erasure that is not done.
    if (wal_->wants_compaction() && erasing_.empty()) co_await compact_log();
  }
  house_open_ = false;
  house_.notify();
}

asio::awaitable<void> Edge::compact_log() {
  const auto keep_keys = std::chrono::duration_cast<std::chrono::milliseconds>(options_.limits.keep_keys).count();
  const Result<void> compacted = co_await net::on_pool(*calls_, [this, keep_keys, now = context_.now_ms()] {
    LiveRecords filter(now, keep_keys);
    return wal_->compact(filter);
  });
  if (!compacted.ok()) log_error("the edge log was not compacted", {{"why", compacted.error().message()}});
}

void Edge::begin_stop() {
  context_.stopping = true;
  house_.notify();
  events_changed_.notify();
  for (const auto& [id, sandbox] : by_id_) {
    sandbox->give_up_pack();
    sandbox->stop_reclaim();
    sandbox->changed().notify();
  }
}

asio::awaitable<void> Edge::stop(Sandboxes sandboxes) {
  begin_stop();
  // The sweep asks the spawner, which may be stopped once this returns.
  const Instant swept_by = context_.clock.now() + kSweepPatience;
  while (recovering_ && context_.clock.now() < swept_by) co_await context_.swept_now.wait(swept_by);
  std::vector<std::shared_ptr<LiveSandbox>> all;
  for (const auto& [id, sandbox] : by_id_) all.push_back(sandbox);
  if (sandboxes == Sandboxes::kStop) {
    for (const std::shared_ptr<LiveSandbox>& sandbox : all) sandbox->begin_end(model::EndCause::kDrain, "the node was stopped");
    for (const std::shared_ptr<LiveSandbox>& sandbox : all) {
      const Instant by = context_.clock.now() + options_.limits.destroy_deadline;
      while (sandbox->state() != SandboxState::kEnded && context_.clock.now() < by) co_await sandbox->changed().wait(by);
    }
  }
  for (const std::shared_ptr<LiveSandbox>& sandbox : all) {
    egress_->stop(sandbox->id());
    sandbox->let_go();
  }
  co_await save_ended();
  const Instant by = context_.clock.now() + std::chrono::seconds(5);
  while (house_open_ && context_.clock.now() < by) co_await house_.wait(by);
}

}  // namespace dsec::edge
