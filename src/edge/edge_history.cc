// What has ended: kept in memory for a while, then in the history alone, and
// forgotten on request.
//
// Forgetting on request is one record of the log, committed before the caller is
// answered. From that record on nothing finds the sandbox; its row of the history
// goes a moment later, in the turn of the housekeeping, which also writes the
// history: no batch on its way can bring it back. A start that finds the record
// erases the row again, and output of sandboxes that nobody knows.

#include <fcntl.h>

#include <fmt/format.h>

#include <boost/asio/post.hpp>
#include <boost/json.hpp>
#include <charconv>

#include "base/encoding.h"
#include "base/fail_point.h"
#include "base/log.h"
#include "edge/edge.h"
#include "edge/handlers/handlers.h"
#include "model/json.h"
#include "model/json_text.h"
#include "model/selector.h"
#include "net/blocking.h"
#include "sys/file.h"

namespace dsec::edge {

using model::SandboxState;
using store::HistoryPlace;

namespace {

HistoryPlace place_of(const model::Sandbox& sandbox) { return {sandbox.created_at_ms, sandbox.id}; }

std::string cursor_of(const HistoryPlace& place) { return to_base32(fmt::format("{}:{}", place.created_at_ms, place.id)); }

Result<HistoryPlace> parse_cursor(const std::string& cursor) {
  HistoryPlace place;
  if (cursor.empty()) return place;
  const Result<std::string> text = from_base32(cursor);
  const auto colon = text.ok() ? text->find(':') : std::string::npos;
  if (colon == std::string::npos) return invalid_argument("cursor: not one of this listing");
  const auto parsed = std::from_chars(text->data(), text->data() + colon, place.created_at_ms);
  if (parsed.ec != std::errc() || parsed.ptr != text->data() + colon) return invalid_argument("cursor: not one of this listing");
  place.id = text->substr(colon + 1);
  return place;
}

struct Scan {
  std::vector<model::Sandbox> found;
  std::optional<HistoryPlace> stopped;  // more may come behind it
};

// A rare label must not hold the store for as long as the history is: the page
// ends where the patience does, and its cursor goes on from there. Blocks.
Result<Scan> scan_history(store::Store& store, const std::string& project, HistoryPlace after, const model::Selector& selector, std::size_t most) {
  constexpr std::size_t kBatch = 500;
  constexpr std::size_t kMostRows = 20'000;
  Scan scan;
  for (std::size_t rows = 0; scan.found.size() < most; rows += kBatch) {
    if (rows >= kMostRows) {
      scan.stopped = after;
      break;
    }
    DSEC_ASSIGN(std::vector<model::Sandbox> batch, store.history(project, after, kBatch));
    const bool last = batch.size() < kBatch;
    if (!batch.empty()) after = place_of(batch.back());
    for (model::Sandbox& sandbox : batch)
      if (selector.matches(sandbox.spec.labels)) scan.found.push_back(std::move(sandbox));
    if (last) break;
  }
  return scan;
}

// What both have stands once; what lies behind the end of the scan waits for the next page.
SandboxPage merge(std::vector<model::Sandbox> memory, Scan scan, std::size_t limit) {
  std::vector<model::Sandbox> items;
  const auto earlier = [](const model::Sandbox& a, const model::Sandbox& b) { return place_of(a) < place_of(b); };
  std::merge(std::make_move_iterator(memory.begin()), std::make_move_iterator(memory.end()), std::make_move_iterator(scan.found.begin()),
             std::make_move_iterator(scan.found.end()), std::back_inserter(items), earlier);
  items.erase(std::unique(items.begin(), items.end(), [](const model::Sandbox& a, const model::Sandbox& b) { return a.id == b.id; }), items.end());
  if (scan.stopped) std::erase_if(items, [&](const model::Sandbox& item) { return place_of(item) > *scan.stopped; });
  SandboxPage page;
  if (items.size() > limit) {
    items.resize(limit);
    page.next_cursor = cursor_of(place_of(items.back()));
  } else if (scan.stopped) {
    page.next_cursor = cursor_of(*scan.stopped);
  }
  page.items = std::move(items);
  return page;
}

}  // namespace

// The memory is read first: what leaves it meanwhile is in the history by then.
asio::awaitable<Result<SandboxPage>> Edge::list(model::Principal principal, ListQuery query) {
  DSEC_CO_ASSIGN(const model::Selector selector, model::Selector::parse(query.selector));
  std::optional<SandboxState> state;
  if (!query.state.empty() && query.state != "all") {
    DSEC_CO_ASSIGN(state, model::parse_sandbox_state(query.state));
  }
  if (query.limit == 0 || query.limit > 1000) co_return invalid_argument("limit: must be between 1 and 1000");
  DSEC_CO_ASSIGN(const HistoryPlace after, parse_cursor(query.cursor));

  const std::size_t most = query.limit + 1;
  std::vector<model::Sandbox> items;
  for (auto at = by_time_.upper_bound({after.created_at_ms, after.id}); at != by_time_.end() && items.size() < most; ++at) {
    const LiveSandbox& sandbox = *at->second;
    if (sandbox.project() != principal.project || !selector.matches(sandbox.view().spec.labels)) continue;
    if (state ? sandbox.state() == *state : query.state == "all" || sandbox.state() != SandboxState::kEnded) items.push_back(sandbox.view());
  }
  Scan scan;
  if (parts_.history != nullptr && (query.state == "all" || state == SandboxState::kEnded)) {
    DSEC_CO_ASSIGN(scan, co_await net::on_pool(*calls_, [store = parts_.history, project = principal.project, after, selector, most] {
                     return scan_history(*store, project, after, selector, most);
                   }));
    std::erase_if(scan.found, [this](const model::Sandbox& sandbox) { return erasing_.contains(sandbox.id); });
  }
  co_return merge(std::move(items), std::move(scan), query.limit);
}

// nullopt: `found`, what the memory has under this ref (nullptr: nothing), is the one that is meant.
asio::awaitable<Result<std::optional<model::Sandbox>>> Edge::find_past(std::string project, std::string ref, std::shared_ptr<LiveSandbox> found) {
  const bool certain = found != nullptr && (found->state() != SandboxState::kEnded || found->id().starts_with(ref));
  if (certain || parts_.history == nullptr) co_return std::optional<model::Sandbox>();
  DSEC_CO_ASSIGN(std::optional<model::Sandbox> past,
                 co_await net::on_pool(*calls_, [store = parts_.history, project, ref] { return store->find_past(project, ref); }));
  if (past && erasing_.contains(past->id)) past.reset();
  // A name means the one that ended last, wherever it is.
  if (past && found != nullptr && past->ended_at_ms <= found->view().ended_at_ms) past.reset();
  co_return past;
}

// What is over can be looked at, deleted once more and forgotten, long after it left the memory.
asio::awaitable<Result<void>> Edge::serve_past(net::Exchange& exchange, model::Sandbox past) {
  const net::HttpRequest& request = exchange.request();
  if (request.method == "GET") {
    DSEC_CO_TRY(handlers::check_look(request));
  } else if (request.method == "DELETE") {
    DSEC_CO_ASSIGN(const bool forget, handlers::wants_forgetting(request));
    if (forget) DSEC_CO_TRY(co_await forget_on_request(past.id));
  } else {
    co_return Error(ErrorCode::kConflict, "the sandbox has ended");
  }
  co_return co_await exchange.respond(net::json_response(200, model::json_text(model::to_json(past))));
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
  co_return Error(ErrorCode::kUnavailable, "the log has not taken the forgetting yet: ask again");
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
