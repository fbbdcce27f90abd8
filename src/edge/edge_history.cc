// What has ended: kept in memory for a while, then in the history alone, and
// forgotten on request.
//
// Forgetting on request is one record of the log, committed before the caller is
// answered. From that record on nothing finds the sandbox; its row of the history
// goes a moment later, in the turn of the housekeeping, which also writes the
// history: no batch on its way can bring it back. A start that finds the record
// erases the row again, and output of sandboxes that nobody knows.

#include <fcntl.h>

#include <boost/asio/post.hpp>
#include <boost/json.hpp>

#include "base/fail_point.h"
#include "base/log.h"
#include "edge/edge.h"
#include "edge/handlers/handlers.h"
#include "model/json.h"
#include "net/blocking.h"
#include "sys/file.h"

namespace dsec::edge {

// What is over can be looked at, and deleted once more, long after it left the memory.
asio::awaitable<Result<void>> Edge::answer_from_history(net::Exchange& exchange, std::string project, std::string id, Error otherwise) {
  if (exchange.request().method != "GET" && exchange.request().method != "DELETE") co_return otherwise;
  bool forget = false;
  if (exchange.request().method == "GET") {
    DSEC_CO_TRY(handlers::check_look(exchange.request()));
  } else {
    DSEC_CO_ASSIGN(forget, handlers::wants_forgetting(exchange.request()));
  }
  DSEC_CO_ASSIGN(const std::optional<model::Sandbox> past,
                 co_await net::on_pool(*calls_, [store = parts_.history, project, id] { return store->past(project, id); }));
  if (!past || erasing_.contains(past->id)) co_return otherwise;
  if (forget) DSEC_CO_TRY(co_await forget_on_request(past->id));
  co_return co_await exchange.respond(net::json_response(200, boost::json::serialize(model::to_json(*past))));
}

void Edge::forget_oldest(std::deque<std::string>& ended, std::size_t most) {
  const std::int64_t now = context_.now_ms();
  const auto keep = std::chrono::duration_cast<std::chrono::milliseconds>(options_.limits.keep_ended).count();
  while (!ended.empty()) {
    const auto oldest = by_id_.find(ended.front());
    if (ended.size() <= most && oldest != by_id_.end() && now - oldest->second->view().ended_at_ms < keep) break;
    // What the history does not have yet is nowhere else.
    if (std::any_of(unsaved_.begin(), unsaved_.end(), [&](const model::Sandbox& sandbox) { return sandbox.id == ended.front(); })) break;
    const std::string id = std::move(ended.front());
    ended.pop_front();
    forget(id);
  }
}

asio::awaitable<void> Edge::save_ended() {
  constexpr std::size_t kMostUnsaved = 10'000;
  constexpr std::int64_t kTrimPeriodMs = 600'000;
  if (parts_.history == nullptr || unsaved_.empty()) co_return;
  const auto batch = std::make_shared<std::vector<model::Sandbox>>(std::exchange(unsaved_, {}));
  const std::int64_t now = context_.now_ms();
  const bool trim = now - history_trimmed_ms_ >= kTrimPeriodMs;
  const std::int64_t before = now - std::chrono::duration_cast<std::chrono::milliseconds>(options_.limits.keep_history).count();
  const Result<void> saved =
      co_await net::on_pool(*calls_, [store = parts_.history, batch, trim, before, most = options_.limits.max_history]() -> Result<void> {
        DSEC_TRY(store->append_history(*batch));
        return trim ? store->trim_history(before, most) : Result<void>();
      });
  if (saved.ok()) {
    if (trim) history_trimmed_ms_ = now;
    co_return;
  }
  log_error("ended sandboxes are not in the history", {{"count", std::to_string(batch->size())}, {"why", saved.error().message()}});
  std::erase_if(*batch, [this](const model::Sandbox& sandbox) { return erasing_.contains(sandbox.id); });
  if (unsaved_.size() + batch->size() <= kMostUnsaved) unsaved_.insert(unsaved_.begin(), batch->begin(), batch->end());
}

void Edge::forget(const std::string& id) {
  if (!by_id_.contains(id)) return;
  if (Result<std::uint64_t> logged = context_.log(WalType::kForgotten, ForgottenRecord{.id = id}); !logged.ok())
    log_warning("a sandbox is not forgotten in the log", {{"sandbox", id}, {"why", logged.error().message()}});
  drop(id);
}

void Edge::drop(const std::string& id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  const std::shared_ptr<LiveSandbox> sandbox = found->second;
  by_time_.erase({sandbox->view().created_at_ms, id});
  by_id_.erase(found);
  sandbox->spool().remove();
}

asio::awaitable<Result<void>> Edge::forget_on_request(std::string id) {
  constexpr auto kPatience = std::chrono::seconds(10);
  DSEC_CO_TRY(fail_point("edge.forget"));
  DSEC_CO_ASSIGN(const std::uint64_t position, context_.log(WalType::kForgotten, ForgottenRecord{.id = id, .erase = true}));
  std::erase(ended_, id);
  std::erase(deleted_, id);
  std::erase_if(unsaved_, [&](const model::Sandbox& sandbox) { return sandbox.id == id; });
  std::erase_if(events_, [&](const SandboxEvent& event) { return event.sandbox_id == id; });
  erasing_.insert(id);
  DSEC_CO_TRY(fail_point("edge.forgotten"));
  drop(id);
  log_info("a sandbox is forgotten on request", {{"sandbox", id}});

  const auto committed = std::make_shared<std::optional<Result<void>>>();
  wal_->commit(position, [this, io = &parts_.io, committed](Result<void> outcome) {
    asio::post(*io, [this, committed, outcome = std::move(outcome)] {
      *committed = outcome;
      erased_.notify();
    });
  });
  house_.notify();
  const Instant by = context_.clock.now() + kPatience;
  while ((!*committed || erasing_.contains(id)) && !context_.stopping && context_.clock.now() < by) co_await erased_.wait(by);
  if (*committed) co_return **committed;
  co_return Result<void>();
}

asio::awaitable<void> Edge::erase_forgotten() {
  if (erasing_.empty()) co_return;
  const auto ids = std::make_shared<std::vector<std::string>>(erasing_.begin(), erasing_.end());
  if (parts_.history != nullptr) {
    const Result<void> erased = co_await net::on_pool(*calls_, [store = parts_.history, ids]() -> Result<void> {
      DSEC_TRY(fail_point("edge.erase"));
      return store->erase_history(*ids);
    });
    if (!erased.ok()) {
      log_error("forgotten sandboxes are still in the history", {{"count", std::to_string(ids->size())}, {"why", erased.error().message()}});
      co_return;
    }
  }
  for (const std::string& id : *ids) erasing_.erase(id);
  erased_.notify();
}

// A kill between the record and the removal leaves output that is nobody's.
void Edge::sweep_output() const {
  const Result<std::vector<std::string>> names = sys::list_directory(context_.sandbox_directory);
  if (!names.ok()) return log_warning("stored output cannot be listed", {{"why", names.error().message()}});
  for (const std::string& name : *names) {
    if (by_id_.contains(name)) continue;
    const Result<sys::Fd> directory = sys::open_at(AT_FDCWD, context_.sandbox_directory, O_RDONLY | O_DIRECTORY);
    const Result<void> removed = directory.ok() ? sys::remove_tree_at(directory->get(), name) : Result<void>(directory.error());
    if (!removed.ok()) log_warning("stored output of a forgotten sandbox was not removed", {{"sandbox", name}, {"why", removed.error().message()}});
  }
}

}  // namespace dsec::edge
