// The apiserver's way to the edge of the same process.
#pragma once

#include "apiserver/edge_gateway.h"
#include "edge/edge.h"

namespace dsec {

class InProcessGateway final : public apiserver::EdgeGateway {
 public:
  explicit InProcessGateway(edge::Edge& edge) : edge_(edge) {}

  net::asio::awaitable<Result<model::Sandbox>> create(apiserver::CreateCommand c) override {
    edge::CreateCommand command{std::move(c.principal), std::move(c.spec), std::move(c.layers), std::move(c.idempotency_key), c.wait};
    co_return co_await edge_.create(std::move(command));
  }
  Result<model::Sandbox> find(const model::Principal& principal, const std::string& ref) const override {
    DSEC_ASSIGN(const std::shared_ptr<edge::LiveSandbox> sandbox, edge_.find(principal, ref));
    return sandbox->view();
  }
  net::asio::awaitable<Result<model::LayerRecord>> pack(apiserver::PackCommand c) override {
    edge::PackCommand command{std::move(c.principal), std::move(c.ref), std::move(c.options), std::move(c.cancelled), std::move(c.event), c.fence, c.unless_unchanged};
    co_return co_await edge_.pack(std::move(command));
  }
  net::asio::awaitable<Result<apiserver::CommandEnd>> run_command(apiserver::CommandOrder o) override {
    edge::CommandOrder order{std::move(o.principal), std::move(o.sandbox), std::move(o.argv), std::move(o.env), std::move(o.on_output), o.timeout_ms};
    DSEC_CO_ASSIGN(edge::CommandEnd end, co_await edge_.run_command(std::move(order)));
    co_return apiserver::CommandEnd{end.exit_code, std::move(end.why), end.infra};
  }
  net::asio::awaitable<Result<void>> write_file(apiserver::FileOrder o) override {
    edge::FileOrder order{std::move(o.principal), std::move(o.sandbox), std::move(o.path), std::move(o.bytes), std::move(o.user), o.mode};
    co_return co_await edge_.put_file(std::move(order));
  }
  net::asio::awaitable<Result<model::Sandbox>> rollback(apiserver::RollbackCommand c) override {
    co_return co_await edge_.rollback({std::move(c.principal), std::move(c.ref), std::move(c.checkpoint), std::move(c.layers), c.fence});
  }
  net::asio::awaitable<Result<Page>> list(model::Principal principal, apiserver::ListQuery q) override {
    DSEC_CO_ASSIGN(edge::SandboxPage page, co_await edge_.list(std::move(principal), {q.selector, q.state, q.limit, q.cursor}));
    co_return Page{std::move(page.items), std::move(page.next_cursor)};
  }
  net::asio::awaitable<void> serve(net::Exchange& exchange, model::Principal principal, std::string ref, std::vector<std::string> rest) override {
    co_await edge_.serve(exchange, std::move(principal), std::move(ref), std::move(rest));
  }
  net::asio::awaitable<void> serve_port_host(net::Exchange& exchange, std::string sandbox_id, std::uint16_t port) override {
    co_await edge_.serve_port_host(exchange, std::move(sandbox_id), port);
  }
  void set_services(std::vector<model::ServiceDefinition> services) override { edge_.set_services(std::move(services)); }
  net::asio::awaitable<Result<DetectedServices>> detect_services() override {
    DSEC_CO_ASSIGN(edge::DetectedServices found, co_await edge_.detect_services());
    co_return DetectedServices{std::move(found.services), std::move(found.notes)};
  }
  net::asio::awaitable<Result<std::vector<apiserver::BulkResult>>> bulk(apiserver::BulkCommand c) override {
    edge::BulkCommand command{std::move(c.principal), static_cast<edge::BulkCommand::Verb>(c.verb), std::move(c.selector), std::move(c.reason), c.wake, c.fence, c.within};
    DSEC_CO_ASSIGN(std::vector<edge::BulkResult> results, co_await edge_.bulk(std::move(command)));
    std::vector<apiserver::BulkResult> out;
    for (edge::BulkResult& result : results) out.push_back({std::move(result.id), std::move(result.name), result.state, std::move(result.error)});
    co_return out;
  }
  std::vector<apiserver::Hold> holds(const std::string& project) const override {
    std::vector<apiserver::Hold> out;
    for (const edge::Hold& hold : edge_.holds(project))
      out.push_back({hold.record.selector, hold.record.reason, hold.record.wake, hold.record.fence, hold.record.at_ms, hold.queued});
    return out;
  }
  net::asio::awaitable<Result<model::Sandbox>> end(model::Principal principal, std::string ref) override {
    DSEC_CO_ASSIGN(const std::shared_ptr<edge::LiveSandbox> sandbox, edge_.find(principal, ref));
    co_await sandbox->end(model::EndCause::kUser, "");
    co_return sandbox->view();
  }
  bool uses_layer(const std::string& digest) const override { return edge_.uses_layer(digest); }
  std::map<std::string, std::vector<std::string>> layer_users() const override { return edge_.layer_users(); }
  net::asio::awaitable<std::vector<Event>> events(std::string project, std::uint64_t after, Instant by) override {
    std::vector<Event> out;
    for (edge::SandboxEvent& event : co_await edge_.events(std::move(project), after, by))
      out.push_back({event.sequence, event.at_ms, std::move(event.sandbox_id), std::move(event.project), std::move(event.type), std::move(event.detail)});
    co_return out;
  }
  std::uint64_t last_event() const override { return edge_.last_event(); }
  placement::EdgeLoad load() const override {
    const edge::EdgeLoad load = edge_.load();
    return {load.node, load.accepting, load.backends, std::string(model::node_architecture()), load.sandboxes, load.most_sandboxes, load.memory_mb, load.most_memory_mb};
  }
  std::string node_json() const override { return edge_.node_json(); }

 private:
  edge::Edge& edge_;
};

}  // namespace dsec
