// pack_diff: what a sandbox has written becomes a layer.
//
// The sandbox's turn is held from the first step to the last, so that it neither
// ends nor is packed twice meanwhile; who wants its end has the pack given up. Its
// processes are frozen, and what would write beside them, by way of the agent, waits.

#include <algorithm>
#include <boost/asio/post.hpp>

#include "base/fail_point.h"
#include "base/log.h"
#include "edge/edge.h"
#include "edge/file_transfer.h"
#include "image/importer.h"
#include "net/blocking.h"

namespace dsec::edge {

namespace {

constexpr auto kWritesDeadline = std::chrono::seconds(5);
constexpr int kThawAttempts = 5;

// Thaws at the latest with its destruction.
class Frozen {
 public:
  static Result<std::unique_ptr<Frozen>> freeze(backend::Instance& instance, const Limits& limits, const std::function<void()>& thawed) {
    std::unique_ptr<Frozen> frozen(new Frozen(instance, limits, thawed));
    DSEC_TRY(instance.freeze(Deadline::in(limits.freeze_deadline)).within("let the sandbox stand still"));
    return frozen;
  }
  ~Frozen() { thaw(); }
  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;

  void thaw() {
    if (std::exchange(over_, true)) return;
    for (int attempt = 1;; ++attempt) {
      const Result<void> done = instance_.thaw(Deadline::in(limits_.freeze_deadline));
      if (done.ok()) break;
      log_error("a sandbox cannot be thawed", {{"attempt", std::to_string(attempt)}, {"why", done.error().message()}});
      if (attempt == kThawAttempts) break;
    }
    thawed_();
  }

 private:
  Frozen(backend::Instance& instance, const Limits& limits, const std::function<void()>& thawed) : instance_(instance), limits_(limits), thawed_(thawed) {}
  backend::Instance& instance_;
  const Limits& limits_;
  const std::function<void()>& thawed_;
  bool over_ = false;
};

// What the platform writes into each sandbox before it starts is not the sandbox's.
const std::vector<std::string> kPlatformFiles = {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/etc/machine-id"};

std::uint64_t next_generation(const image::LayerStore& layers, const std::string& sandbox) {
  std::uint64_t last = 0;
  for (const model::LayerRecord& record : layers.list())
    if (record.provenance && record.provenance->sandbox == sandbox) last = std::max(last, record.provenance->generation);
  return last + 1;
}

}  // namespace

bool LiveSandbox::holds_back(std::shared_ptr<Exec> exec) {
  if (!stands_still_) return false;
  if (std::find(held_back_.begin(), held_back_.end(), exec) == held_back_.end()) held_back_.push_back(std::move(exec));
  return true;
}

void LiveSandbox::go_on() {
  stands_still_ = false;
  // The time that a place for a command was frozen, while nothing ran in it, is nobody's.
  if (spare_ != nullptr) spare_ = spare_->renew();
  for (const std::shared_ptr<Exec>& exec : std::exchange(held_back_, {})) {
    if (exec->processes() != nullptr)
      if (std::unique_ptr<backend::Operation> fresh = exec->processes()->renew(); fresh != nullptr) exec->give_processes(std::move(fresh));
    exec->start();
  }
  for (const auto& [op_id, exec] : execs_) exec->go_on();
  changed_.notify();
}

bool LiveSandbox::files_are_written() const {
  return std::any_of(transfers_.begin(), transfers_.end(), [](const auto& entry) { return entry.second->writes(); });
}

void LiveSandbox::give_up_pack() {
  if (pack_cancelled_) pack_cancelled_->store(true);
}

asio::awaitable<Result<model::LayerRecord>> LiveSandbox::pack(image::PackOptions options, std::shared_ptr<std::atomic<bool>> cancelled, std::string event, bool unless_unchanged) {
  const std::shared_ptr<LiveSandbox> self = shared_from_this();
  co_await taken_up();
  const Mailbox::Turn turn = co_await mailbox_.enter();
  if (awaits_adoption_) co_return Error(ErrorCode::kUnavailable, "the node is stopping");
  if (over() || end_wanted_) co_return Error(ErrorCode::kConflict, "the sandbox has ended, and what it wrote went with it");
  if (!running()) co_return Error(ErrorCode::kConflict, sandbox_.pause ? "the sandbox was paused again" : "the sandbox does not run yet");
  stands_still_ = true;
  pack_cancelled_ = cancelled;
  const Instant by = context_.clock.now() + kWritesDeadline;
  // A transfer tells nobody of its end but who made it.
  while (files_are_written() && !cancelled->load() && context_.clock.now() < by)
    co_await changed_.wait(std::min(by, context_.clock.now() + std::chrono::milliseconds(20)));
  Result<model::LayerRecord> packed = Error(ErrorCode::kConflict, "files are being written into the sandbox: pack it when that is over");
  if (cancelled->load()) {
    packed = Error(ErrorCode::kCancelled, "the pack was cancelled");
  } else if (!files_are_written()) {
    options.layer.cancelled = cancelled.get();
    packed = co_await net::on_pool(context_.packs, [self, cancelled, options = std::move(options), unless_unchanged] {
      const auto thawed = [self] { asio::post(self->context_.io, [self] { self->go_on(); }); };
      return self->owner_.pack_blocking(self->accepted_, *self->instance_, options, thawed, unless_unchanged ? &self->last_pack_ : nullptr);
    });
  }
  pack_cancelled_.reset();
  go_on();
  if (!packed.ok() && (end_wanted_ || gone_)) co_return Error(ErrorCode::kConflict, "the sandbox ended before it was packed");
  note_event(packed.ok() ? event : event + "_failed", packed.ok() ? packed->digest : packed.error().message());
  co_return packed;
}

asio::awaitable<void> LiveSandbox::thaw_left_frozen() {
  const std::shared_ptr<LiveSandbox> self = shared_from_this();
  const Result<void> thawed = co_await net::on_pool(
      context_.calls, [instance = instance_, by = context_.limits.freeze_deadline] { return instance->thaw(Deadline::in(by)); });
  if (!thawed.ok()) log_warning("whether a sandbox runs on is not known", {{"sandbox", id()}, {"why", thawed.error().message()}});
}

Result<model::LayerRecord> Edge::pack_blocking(const AcceptedRecord& accepted, backend::Instance& instance, image::PackOptions options,
                                               const std::function<void()>& thawed, LastPack* last) {
  options.provenance.sandbox = accepted.id;
  options.provenance.project = accepted.project;
  options.provenance.parents = accepted.layer_digests;
  options.provenance.generation = next_generation(*parts_.layers, accepted.id);
  options.remove.insert(options.remove.end(), kPlatformFiles.begin(), kPlatformFiles.end());
  options.layer.time_limit = std::chrono::duration_cast<std::chrono::seconds>(options_.limits.frozen_deadline);
  DSEC_ASSIGN(const UpperLayer upper, parts_.uppers.open(accepted.id));
  if (!upper.directory) return pack_from_memory(instance, std::move(options), upper, thawed);

  // What is dirty goes to disk with the first snapshot, while everything runs; the second finds little left.
  const bool written_back = parts_.uppers.snapshot(accepted.id).ok();
  if (last != nullptr && !last->digest.empty() && written_back) {
    const Result<std::uint64_t> mark = parts_.uppers.change_mark(accepted.id);
    if (mark.ok() && *mark == last->change_mark && parts_.layers->touch(last->digest)) return parts_.layers->find(last->digest);
  }
  LastPack now;
  std::unique_ptr<UpperSnapshot> snapshot;
  {
    DSEC_ASSIGN(const std::unique_ptr<Frozen> frozen, Frozen::freeze(instance, options_.limits, thawed));
    if (options.layer.on_progress) options.layer.on_progress({"read", 0, 0});
    DSEC_TRY(fail_point("edge.pack.frozen"));
    DSEC_ASSIGN(snapshot, parts_.uppers.snapshot(accepted.id));
    if (const Result<std::uint64_t> mark = parts_.uppers.change_mark(accepted.id); mark.ok()) now.change_mark = *mark;
  }
  DSEC_ASSIGN(const backend::WrittenTree tree, instance.open_written(snapshot->layer()));
  options.ids = {tree.first_id, 0, tree.ids};
  DSEC_ASSIGN(model::LayerRecord made, parts_.importer->pack(tree.directory.get(), options));
  now.digest = made.digest;
  if (last != nullptr && now.change_mark != 0) *last = std::move(now);
  return made;
}

// There are no snapshots of memory: the sandbox stands while it is read, but not while the reader starts.
Result<model::LayerRecord> Edge::pack_from_memory(backend::Instance& instance, image::PackOptions options, const UpperLayer& upper,
                                                  const std::function<void()>& thawed) {
  DSEC_ASSIGN(const backend::WrittenTree tree, instance.open_written(upper.layer()));
  options.ids = {tree.first_id, 0, tree.ids};
  std::unique_ptr<Frozen> frozen;
  options.on_ready = [&]() -> Result<void> {
    DSEC_ASSIGN(frozen, Frozen::freeze(instance, options_.limits, thawed));
    if (options.layer.on_progress) options.layer.on_progress({"read", 0, 0});
    return fail_point("edge.pack.frozen");
  };
  options.layer.on_progress = [&frozen, told = std::move(options.layer.on_progress)](const image::ImportProgress& progress) {
    if (frozen != nullptr && progress.stage != "read") frozen->thaw();
    if (told) told(progress);
  };
  return parts_.importer->pack(tree.directory.get(), options);
}

asio::awaitable<Result<model::LayerRecord>> Edge::pack(PackCommand command) {
  if (parts_.importer == nullptr || parts_.layers == nullptr) co_return Error(ErrorCode::kUnsupported, "this node makes no layers");
  DSEC_CO_ASSIGN(const std::shared_ptr<LiveSandbox> sandbox, find(command.principal, command.ref));
  const LiveSandbox::Use use(sandbox);
  if (command.fence && !sandbox->passes(*command.fence)) co_return Error(ErrorCode::kConflict, "fenced: a higher fence has been seen");
  if (command.fence) DSEC_CO_TRY(sandbox->raise_fence(*command.fence));
  DSEC_CO_TRY(co_await sandbox->wake(command.fence, context_.clock.now() + options_.limits.resume_deadline));
  command.options.provenance.by = command.principal.key_id;
  co_return co_await sandbox->pack(std::move(command.options), std::move(command.cancelled), std::move(command.event), command.unless_unchanged);
}

}  // namespace dsec::edge
