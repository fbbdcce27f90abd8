// GET, PATCH and DELETE of one sandbox; its stats and events.

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/json.hpp>

#include "edge/handlers/handlers.h"
#include "net/query.h"
#include "model/json.h"
#include "model/json_text.h"
#include "model/strict_object.h"
#include "model/time_text.h"
#include "net/blocking.h"

namespace dsec::edge::handlers {

using net::Query;

namespace json = boost::json;

namespace {

constexpr std::size_t kPatchBody = 1 << 20;
constexpr auto kDeleteWait = std::chrono::seconds(25);
constexpr std::uint64_t kMaxWaitMs = 60'000;

asio::awaitable<Result<void>> answer(net::Exchange& exchange, const LiveSandbox& sandbox, int status) {
  co_return co_await exchange.respond(net::json_response(status, model::json_text(model::to_json(sandbox.view()))));
}

struct Look {
  std::uint64_t wait_ms = 0;
  model::SandboxState wanted = model::SandboxState::kEnded;
};

Result<Look> look_of(const net::HttpRequest& request) {
  DSEC_ASSIGN(const Query query, Query::parse(request, {"wait_ms", "for"}));
  Look look;
  DSEC_ASSIGN(look.wait_ms, query.number("wait_ms", 0));
  if (look.wait_ms > kMaxWaitMs) return invalid_argument("wait_ms: a number from 0 to 60000");
  const std::string wanted = query.has("for") ? query.text("for") : "ended";
  if (wanted != "ended" && wanted != "running") return invalid_argument("for: must be ended or running");
  if (wanted == "running") look.wanted = model::SandboxState::kRunning;
  return look;
}

// Also when it can be reached no more: what is ending runs never again.
bool reached(const LiveSandbox& sandbox, model::SandboxState wanted) {
  return sandbox.state() == wanted || (wanted == model::SandboxState::kRunning && sandbox.over());
}

asio::awaitable<Result<void>> look(net::Exchange& exchange, SandboxRef sandbox) {
  using namespace asio::experimental::awaitable_operators;
  DSEC_CO_ASSIGN(const Look look, look_of(exchange.request()));
  const Context& context = sandbox->context();
  const Instant by = context.clock.now() + std::chrono::milliseconds(look.wait_ms);
  while (!reached(*sandbox, look.wanted) && !context.stopping && context.clock.now() < by) {
    const auto first = co_await (sandbox->changed().wait(by) || exchange.client_gone());
    if (first.index() == 1) co_return Error(ErrorCode::kCancelled, "the client has gone away");
  }
  co_return co_await answer(exchange, *sandbox, 200);
}

asio::awaitable<Result<void>> patch(net::Exchange& exchange, SandboxRef sandbox) {
  DSEC_CO_ASSIGN(const std::string body, co_await exchange.read_body(kPatchBody));
  DSEC_CO_ASSIGN(const json::value value, model::parse_json(body));
  model::SandboxSpec spec = sandbox->view().spec;
  model::StrictObject fields(value, "");
  if (fields.has("labels")) spec.labels.clear();
  fields.read("labels", spec.labels);
  if (const json::value* lifetime = fields.take("lifetime")) DSEC_CO_TRY(model::merge_json(*lifetime, "lifetime", spec.lifetime));
  if (const json::value* network = fields.take("network")) DSEC_CO_TRY(model::merge_json(*network, "network", spec.network));
  DSEC_CO_TRY(fields.finish());
  if (spec.network.mode != sandbox->view().spec.network.mode)
    co_return Error(ErrorCode::kUnsupported, "network.mode: cannot change while the sandbox lives; its rules can");
  DSEC_CO_TRY(model::validate(spec));
  DSEC_CO_TRY(sandbox->patch(spec));
  co_return co_await answer(exchange, *sandbox, 200);
}

asio::awaitable<Result<void>> remove(net::Exchange& exchange, SandboxRef sandbox) {
  DSEC_CO_ASSIGN(const bool forget, wants_forgetting(exchange.request()));
  // The end goes on whether or not the caller waits for it.
  sandbox->begin_end(model::EndCause::kUser, "");
  const Instant by = sandbox->context().clock.now() + kDeleteWait;
  while (sandbox->state() != model::SandboxState::kEnded && sandbox->context().clock.now() < by) co_await sandbox->changed().wait(by);
  if (sandbox->state() != model::SandboxState::kEnded) co_return co_await answer(exchange, *sandbox, 202);
  if (forget) DSEC_CO_TRY(co_await sandbox->forget());
  co_return co_await answer(exchange, *sandbox, 200);
}

}  // namespace

Result<void> check_look(const net::HttpRequest& request) {
  DSEC_TRY(look_of(request));
  return {};
}

Result<bool> wants_forgetting(const net::HttpRequest& request) {
  DSEC_ASSIGN(const Query query, Query::parse(request, {"forget"}));
  return query.flag("forget");
}

asio::awaitable<Result<void>> sandbox(net::Exchange& exchange, SandboxRef sandbox) {
  const std::string& method = exchange.request().method;
  if (method == "GET") co_return co_await look(exchange, std::move(sandbox));
  if (method == "DELETE") co_return co_await remove(exchange, std::move(sandbox));
  if (method == "PATCH") co_return co_await patch(exchange, std::move(sandbox));
  co_return co_await exchange.respond(net::error_response(invalid_argument("this path takes GET, PATCH and DELETE"),
                                                          {.status = 405, .headers = {{"Allow", "GET, PATCH, DELETE"}}}));
}

asio::awaitable<Result<void>> stats(net::Exchange& exchange, SandboxRef sandbox) {
  const std::shared_ptr<backend::Instance> instance = sandbox->instance();
  if (sandbox->over() || instance == nullptr) co_return Error(ErrorCode::kConflict, "the sandbox does not run");
  DSEC_CO_ASSIGN(const backend::Usage usage, co_await net::on_pool(sandbox->context().calls, [instance] { return instance->usage(); }));
  const Result<backend::WrittenSize> written =
      co_await net::on_pool(sandbox->context().calls, [sandbox, instance] { return sandbox->owner().written_size(sandbox->id(), *instance); });
  const Result<backend::MemoryUse> memory = co_await net::on_pool(sandbox->context().calls, [instance] { return instance->memory(); });
  const model::Sandbox& view = sandbox->view();
  json::object out{
      {"cpu_usec", usage.cpu_usec},
      {"cpu_cores_limit", view.spec.resources.cpu_cores},
      {"memory_bytes", usage.memory_bytes},
      {"memory_peak_bytes", usage.memory_peak_bytes},
      {"memory_limit_bytes", view.spec.resources.memory_mb << 20},
      {"disk_limit_bytes", view.spec.resources.disk_mb << 20},
      {"processes", usage.processes},
      {"processes_limit", view.spec.resources.max_processes},
      {"oom_kills", usage.oom_kills},
      {"stalled_usec", usage.stalled_usec},
      {"running_execs", sandbox->running_execs()},
      {"output_bytes", sandbox->spool().bytes()},
  };
  if (memory.ok()) {
    out["swapped_bytes"] = memory->swapped_bytes;
    out["memory_stalled_usec"] = memory->stalled_usec;
  }
  if (written.ok()) {
    out["disk_bytes"] = written->bytes;
    if (written->files) out["disk_files"] = *written->files;
  }
  co_return co_await exchange.respond(net::json_response(200, model::json_text(out)));
}

asio::awaitable<Result<void>> events(net::Exchange& exchange, SandboxRef sandbox) {
  DSEC_CO_ASSIGN(const Query query, Query::parse(exchange.request(), {"after"}));
  DSEC_CO_ASSIGN(const std::uint64_t after, query.number("after", 0));
  json::array items;
  for (const SandboxEvent& event : sandbox->events()) {
    if (event.sequence <= after) continue;
    items.push_back(json::object{{"sequence", event.sequence},
                                 {"at", model::time_text(event.at_ms)},
                                 {"sandbox", event.sandbox_id},
                                 {"type", event.type},
                                 {"detail", event.detail}});
  }
  co_return co_await exchange.respond(net::json_response(200, model::json_text(json::object{{"items", std::move(items)}})));
}

}  // namespace dsec::edge::handlers
