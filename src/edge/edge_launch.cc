// What a launch and an end need from the node: layers, writable layer, network.

#include <algorithm>

#include "base/fail_point.h"
#include "base/log.h"
#include "edge/edge.h"
#include "edge/file_transfer.h"
#include "model/sha256.h"
#include "net/blocking.h"

namespace dsec::edge {

namespace {

constexpr auto kCertificateDeadline = std::chrono::seconds(10);

// Names are answered by the stub on the sandbox's own loopback, where it has one.
std::map<std::string, std::string> etc_files(const model::SandboxSpec& spec, const std::string& hostname, const std::string& machine_id) {
  const bool proxy = spec.network.mode == model::NetworkMode::kProxy;
  return {{"hostname", hostname + "\n"},
          // Of the sandbox, not of its image or of what it was forked from.
          {"machine-id", machine_id + "\n"},
          {"hosts", "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 " + hostname + "\n"},
          {"resolv.conf", proxy ? "nameserver 127.0.0.1\noptions timeout:10 attempts:2\n" : "# no network\n"}};
}

asio::awaitable<Result<void>> write_file(std::shared_ptr<LiveSandbox> sandbox, std::string path, std::string bytes) {
  const Instant by = sandbox->context().clock.now() + kCertificateDeadline;
  DSEC_CO_ASSIGN(const std::unique_ptr<FileTransfer> transfer,
                 FileTransfer::begin(sandbox, {.verb = protocol::FileVerb::kWrite, .path = std::move(path), .mode = 0644, .parents = true}));
  for (std::size_t at = 0; at < bytes.size(); at += protocol::kDataChunk) {
    const std::string_view part = std::string_view(bytes).substr(at, protocol::kDataChunk);
    DSEC_CO_TRY(co_await transfer->send_data(part, at + part.size() == bytes.size(), by));
  }
  DSEC_CO_TRY(co_await transfer->next_reply(by));
  co_return Result<void>();
}

// kInvalidArgument would say that the image is at fault.
Error platform_fault(Error error) {
  if (error.code() != ErrorCode::kInvalidArgument) return error;
  return Error(ErrorCode::kInternal, error.message(), error.error_number(), error.where());
}

}  // namespace

Result<Launched> Edge::launch_blocking(const AcceptedRecord& accepted, Deadline deadline) {
  backend::Backend& backend = *parts_.backends.at(accepted.spec.backend);
  const model::Resources& resources = accepted.spec.resources;
  backend::Rootfs rootfs;
  if (parts_.layers != nullptr) {
    for (const std::string& digest : accepted.layer_digests) {
      const Result<int> fd = parts_.layers->mount(digest).within("mount layer " + digest);
      if (!fd.ok()) return platform_fault(fd.error());
      rootfs.layers.push_back({digest, *fd});
    }
  }
  DSEC_TRY(fail_point("edge.upper"));
  const Result<UpperLayer> upper = parts_.uppers.create(accepted.id, static_cast<std::uint64_t>(resources.disk_mb) << 20,
                                                        static_cast<std::uint64_t>(resources.memory_mb) << 20);
  if (!upper.ok()) return platform_fault(upper.error());
  rootfs.upper = upper->layer();
  backend::LaunchSpec spec;
  spec.id = accepted.id;
  spec.hostname = accepted.spec.hostname.empty() ? accepted.id.substr(0, 12) : accepted.spec.hostname;
  spec.resources = resources;
  spec.priority = accepted.spec.priority;
  spec.no_new_privs = accepted.spec.no_new_privs;
  spec.etc_files = etc_files(accepted.spec, spec.hostname, model::sha256(accepted.id).substr(0, 32));
  spec.greeting = hello_frame(accepted, context_.epoch);

  Launched out;
  Result<std::unique_ptr<backend::Instance>> launched = backend.launch(spec, rootfs, deadline);
  Result<void> step;
  if (launched.ok()) {
    out.instance = std::move(launched).value();
    out.record = {.id = accepted.id, .backend_record = out.instance->record(), .upper_record = upper->directory ? "disk" : ""};
    Result<sys::Fd> agent = out.instance->dial_agent(deadline);
    if (agent.ok()) {
      out.agent = std::move(agent).value();
      out.first_operation = out.instance->first_operation();
      return out;
    }
    step = platform_fault(std::move(agent).within("reach the agent").error());
    if (Result<void> destroyed = out.instance->destroy(Deadline::in(options_.limits.destroy_deadline)); !destroyed.ok())
      log_error("a sandbox that did not start is not removed", {{"sandbox", accepted.id}, {"why", destroyed.error().message()}});
  } else {
    step = std::move(launched).error();
  }
  if (Result<void> removed = parts_.uppers.remove(accepted.id); !removed.ok())
    log_error("a writable layer is not removed", {{"sandbox", accepted.id}, {"why", removed.error().message()}});
  return std::move(step).error();
}

Result<backend::WrittenSize> Edge::written_size(const std::string& sandbox_id, backend::Instance& instance) {
  const Result<std::uint64_t> on_disk = parts_.uppers.used_bytes(sandbox_id);
  if (on_disk.ok()) return backend::WrittenSize{.bytes = *on_disk};
  return on_disk.error().code() == ErrorCode::kUnsupported ? instance.written_size() : on_disk.error();
}

Result<void> Edge::remove_upper(const std::string& sandbox_id, const std::string&) { return parts_.uppers.remove(sandbox_id); }

Result<EgressPolicy> Edge::policy_for(const model::Network& network) const {
  std::vector<model::ServiceDefinition> named;
  for (const model::ServiceDefinition& service : services_)
    if (std::find(network.services.begin(), network.services.end(), service.name) != network.services.end()) named.push_back(service);
  return EgressPolicy::create(network, named);
}

Result<void> Edge::check_network(const model::Network& network) const {
  if (network.mode != model::NetworkMode::kProxy) return {};
  DSEC_TRY(policy_for(network));
  return {};
}

// What the sandbox's spec means today. A service that it names may be gone: then
// what that named is not allowed any more.
EgressPolicy Edge::policy_in_force(const LiveSandbox& sandbox) const {
  model::Network network = sandbox.view().spec.network;
  std::erase_if(network.services, [this](const std::string& name) {
    return std::none_of(services_.begin(), services_.end(), [&](const model::ServiceDefinition& s) { return s.name == name; });
  });
  Result<EgressPolicy> policy = policy_for(network);
  if (policy.ok()) return std::move(policy).value();
  log_warning("a sandbox's network rules mean nothing: it reaches nothing", {{"sandbox", sandbox.id()}, {"why", policy.error().message()}});
  return {};
}

asio::awaitable<Result<void>> Edge::connect_network(std::shared_ptr<LiveSandbox> sandbox) {
  if (sandbox->view().spec.network.mode != model::NetworkMode::kProxy) co_return Result<void>();
  EgressPolicy policy = policy_in_force(*sandbox);
  const std::shared_ptr<backend::Instance> instance = sandbox->instance();
  Result<std::vector<sys::Fd>> listeners = co_await net::on_pool(*calls_, [instance] { return instance->listen_loopback(egress_listeners()); });
  if (!listeners.ok()) co_return platform_fault(listeners.error());
  policies_[sandbox->id()] = policy;
  const std::map<std::string, std::string> files = egress_files(policy);
  if (Result<void> served = egress_->serve(sandbox->id(), std::move(listeners).value(), std::move(policy)); !served.ok())
    co_return platform_fault(served.error());
  for (const auto& [path, bytes] : files)
    if (sandbox->channel_open())
      if (Result<void> written = co_await write_file(sandbox, path, bytes); !written.ok())
        // Nothing of the payload has run: what is in the way came with the image.
        co_return invalid_argument("write " + path + " into the sandbox: " + written.error().message());
  co_return Result<void>();
}

void Edge::disconnect_network(LiveSandbox& sandbox) {
  if (policies_.erase(sandbox.id()) > 0) egress_->stop(sandbox.id());
}

std::map<std::string, std::string> Edge::network_environment(const LiveSandbox& sandbox) const {
  const auto policy = policies_.find(sandbox.id());
  return policy == policies_.end() ? std::map<std::string, std::string>() : egress_environment(policy->second);
}

void Edge::set_services(std::vector<model::ServiceDefinition> services) {
  services_ = std::move(services);
  for (auto& [id, policy] : policies_) {
    const auto found = by_id_.find(id);
    if (found == by_id_.end()) continue;
    policy = policy_in_force(*found->second);
    if (Result<void> updated = egress_->update(id, policy); !updated.ok())
      log_warning("a network policy was not updated", {{"sandbox", id}, {"why", updated.error().message()}});
  }
}

}  // namespace dsec::edge
