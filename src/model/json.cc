#include "model/json.h"

#include <boost/json.hpp>
#include <charconv>

#include "base/encoding.h"
#include "model/json_fields.h"
#include "model/strict_object.h"
#include "model/time_text.h"

namespace dsec::model {

namespace json = boost::json;

namespace {
// Boost.JSON writes 2.0 as 2E0, which people have to read.
json::value number(double n) {
  const auto whole = static_cast<std::int64_t>(n);
  return static_cast<double>(whole) == n ? json::value(whole) : json::value(n);
}

std::string_view to_string(NetworkMode mode) {
  switch (mode) {
    case NetworkMode::kNone:
      return "none";
    case NetworkMode::kProxy:
      return "proxy";
    case NetworkMode::kDevice:
      return "device";
  }
  return "none";
}

Result<NetworkMode> parse_network_mode(std::string_view t) {
  for (const NetworkMode mode : {NetworkMode::kNone, NetworkMode::kProxy, NetworkMode::kDevice})
    if (t == to_string(mode)) return mode;
  return invalid_argument("must be none, proxy or device");
}

Result<OnTimeout> parse_on_timeout(std::string_view t) {
  if (t == "stop") return OnTimeout::kStop;
  if (t == "pause") return OnTimeout::kPause;
  return invalid_argument("must be stop or pause");
}

Result<Priority> parse_priority(std::string_view t) {
  if (t == "latency") return Priority::kLatency;
  if (t == "batch") return Priority::kBatch;
  return invalid_argument("must be latency or batch");
}

// The fields of a spec, which a Sandbox carries on its own level.
void add_spec(json::object& out, const SandboxSpec& spec) {
  out["name"] = spec.name;
  out["backend"] = spec.backend;
  if (!spec.architecture.empty()) out["architecture"] = spec.architecture;
  if (!spec.image.empty()) out["image"] = spec.image;
  if (!spec.snapshot.empty()) out["snapshot"] = spec.snapshot;
  const Environment& environment = spec.environment;
  json::object layers;
  if (!environment.base.empty()) layers["base"] = environment.base;
  if (!environment.workspace.empty()) layers["workspace"] = environment.workspace;
  if (!environment.toolkits.empty()) layers["toolkits"] = list(environment.toolkits);
  if (!environment.diffs.empty()) layers["diffs"] = list(environment.diffs);
  if (!layers.empty()) out["environment"] = std::move(layers);
  out["resources"] = to_json(spec.resources);
  out["lifetime"] = to_json(spec.lifetime);
  out["network"] = to_json(spec.network);
  if (spec.start) {
    json::object start{{"argv", list(spec.start->argv)}};
    if (!spec.start->env.empty()) start["env"] = object(spec.start->env);
    if (spec.start->ready_port != 0) start["ready"] = json::object{{"port", spec.start->ready_port}};
    if (!spec.start->ready_command.empty()) start["ready"] = json::object{{"command", spec.start->ready_command}};
    out["start"] = std::move(start);
  }
  out["env"] = object(spec.env);
  out["labels"] = object(spec.labels);
  out["user"] = spec.user;
  out["hostname"] = spec.hostname;
  out["priority"] = spec.priority == Priority::kLatency ? "latency" : "batch";
  out["no_new_privs"] = spec.no_new_privs;
}

void read_start(StrictObject& fields, std::optional<StartCommand>& out) {
  const json::value* value = fields.take("start");
  if (!value) return;
  StartCommand start;
  StrictObject inner(*value, fields.path("start"));
  inner.read("argv", start.argv);
  inner.read("env", start.env);
  // A port or a command, bare or in an object that says which.
  if (inner.has("ready") && value->at("ready").is_string()) {
    inner.read("ready", start.ready_command);
  } else if (inner.has("ready") && value->at("ready").is_number()) {
    inner.read("ready", start.ready_port);
  } else if (const json::value* ready = inner.take("ready")) {
    StrictObject when(*ready, inner.path("ready"));
    when.read("port", start.ready_port);
    when.read("command", start.ready_command);
    if (Result<void> done = when.finish(); !done.ok()) inner.fail(std::move(done).error());
  }
  if (Result<void> done = inner.finish(); !done.ok()) return fields.fail(std::move(done).error());
  out = std::move(start);
}

void read_spec(StrictObject& fields, SandboxSpec& spec) {
  fields.read("name", spec.name);
  fields.read("backend", spec.backend);
  fields.read("architecture", spec.architecture);
  fields.read("image", spec.image);
  fields.read("snapshot", spec.snapshot);
  if (const json::value* value = fields.take("environment")) {
    StrictObject inner(*value, fields.path("environment"));
    inner.read("base", spec.environment.base);
    inner.read("workspace", spec.environment.workspace);
    inner.read("toolkits", spec.environment.toolkits);
    inner.read("diffs", spec.environment.diffs);
    if (Result<void> done = inner.finish(); !done.ok()) fields.fail(std::move(done).error());
  }
  if (const json::value* value = fields.take("resources"))
    if (Result<void> done = merge_json(*value, fields.path("resources"), spec.resources); !done.ok()) fields.fail(std::move(done).error());
  if (const json::value* value = fields.take("lifetime"))
    if (Result<void> done = merge_json(*value, fields.path("lifetime"), spec.lifetime); !done.ok()) fields.fail(std::move(done).error());
  if (const json::value* value = fields.take("network"))
    if (Result<void> done = merge_json(*value, fields.path("network"), spec.network); !done.ok()) fields.fail(std::move(done).error());
  read_start(fields, spec.start);
  fields.read("env", spec.env);
  fields.read("labels", spec.labels);
  fields.read("user", spec.user);
  fields.read("hostname", spec.hostname);
  fields.read_enum("priority", spec.priority, &parse_priority);
  fields.read("no_new_privs", spec.no_new_privs);
}

}  // namespace

json::value to_json(const Resources& resources) {
  return json::object{{"cpu_cores", number(resources.cpu_cores)},
                      {"memory_mb", resources.memory_mb},
                      {"disk_mb", resources.disk_mb},
                      {"max_processes", resources.max_processes}};
}

json::value to_json(const Lifetime& lifetime) {
  return json::object{{"idle_seconds", lifetime.idle_seconds},
                      {"max_seconds", lifetime.max_seconds},
                      {"on_timeout", lifetime.on_timeout == OnTimeout::kStop ? "stop" : "pause"}};
}

json::value to_json(const Network& network) {
  json::array rules;
  for (const NetworkRule& rule : network.rules) {
    json::object one;
    if (!rule.domain.empty()) one["domain"] = rule.domain;
    if (!rule.cidr.empty()) one["cidr"] = rule.cidr;
    if (rule.port != 0) one["port"] = rule.port;
    rules.push_back(std::move(one));
  }
  return json::object{{"mode", text(to_string(network.mode))}, {"services", list(network.services)}, {"rules", std::move(rules)}};
}

Result<void> merge_json(const json::value& value, std::string_view where, Resources& out) {
  StrictObject fields(value, std::string(where));
  fields.read("cpu_cores", out.cpu_cores);
  fields.read("memory_mb", out.memory_mb);
  fields.read("disk_mb", out.disk_mb);
  fields.read("max_processes", out.max_processes);
  return fields.finish();
}

Result<void> merge_json(const json::value& value, std::string_view where, Lifetime& out) {
  StrictObject fields(value, std::string(where));
  fields.read("idle_seconds", out.idle_seconds);
  fields.read("max_seconds", out.max_seconds);
  fields.read_enum("on_timeout", out.on_timeout, &parse_on_timeout);
  return fields.finish();
}

Result<void> merge_json(const json::value& value, std::string_view where, Network& out) {
  StrictObject fields(value, std::string(where));
  fields.read_enum("mode", out.mode, &parse_network_mode);
  fields.read("services", out.services);
  if (const json::array* rules = fields.take_array("rules")) {
    out.rules.clear();
    for (std::size_t i = 0; i < rules->size(); ++i) {
      NetworkRule rule;
      StrictObject inner((*rules)[i], fields.path("rules") + "[" + std::to_string(i) + "]");
      inner.read("domain", rule.domain);
      inner.read("cidr", rule.cidr);
      inner.read("port", rule.port);
      DSEC_TRY(inner.finish());
      out.rules.push_back(std::move(rule));
    }
  }
  return fields.finish();
}

json::value to_json(const SandboxSpec& spec) {
  json::object out;
  add_spec(out, spec);
  return out;
}

json::value to_json(const Sandbox& sandbox) {
  json::object out;
  out.reserve(28);
  out["id"] = sandbox.id;
  add_spec(out, sandbox.spec);
  out["project"] = sandbox.project;
  out["node"] = sandbox.node;
  out["layers"] = list(sandbox.layer_digests);
  out["state"] = text(to_string(sandbox.state));
  out["cause"] = sandbox.cause == EndCause::kNone ? json::value(nullptr) : json::value(text(to_string(sandbox.cause)));
  out["infra"] = sandbox.infra();
  if (!sandbox.end_detail.empty()) out["end_detail"] = sandbox.end_detail;
  out["created_at"] = time_or_null(sandbox.created_at_ms);
  out["started_at"] = time_or_null(sandbox.started_at_ms);
  out["ended_at"] = time_or_null(sandbox.ended_at_ms);
  out["expires_at"] = time_or_null(sandbox.expires_at_ms);
  if (sandbox.rolled_back_at_ms != 0) out["rolled_back_at"] = time_or_null(sandbox.rolled_back_at_ms);
  out["paused_at"] = time_or_null(sandbox.pause ? sandbox.pause->at_ms : 0);
  if (sandbox.pause) {
    const Pause& pause = *sandbox.pause;
    out["pause_reason"] = pause.reason;
    out["wake"] = text(to_string(pause.wake));
    if (pause.left_ms >= 0) out["lifetime_left_ms"] = pause.left_ms;
    if (pause.reclaimed_bytes >= 0) out["reclaimed_bytes"] = pause.reclaimed_bytes;
    if (pause.swapped_bytes >= 0) out["swapped_bytes"] = pause.swapped_bytes;
  }
  if (sandbox.fence != 0) out["fence"] = sandbox.fence;
  out["data_fault_at"] = time_or_null(sandbox.data_fault_at_ms);
  if (!sandbox.data_fault.empty()) out["data_fault"] = sandbox.data_fault;
  return out;
}

Result<SandboxSpec> spec_from_json(const json::value& value, std::initializer_list<std::string_view> allowed_extra) {
  SandboxSpec spec;
  StrictObject fields(value, "");
  read_spec(fields, spec);
  for (const std::string_view name : allowed_extra) fields.ignore(name);
  DSEC_TRY(fields.finish());
  return spec;
}

Result<Sandbox> sandbox_from_json(const json::value& value) {
  Sandbox sandbox;
  StrictObject fields(value, "");
  fields.read("id", sandbox.id);
  read_spec(fields, sandbox.spec);
  fields.read("project", sandbox.project);
  fields.read("node", sandbox.node);
  fields.read("layers", sandbox.layer_digests);
  fields.read_enum("state", sandbox.state, &parse_sandbox_state);
  fields.read_enum("cause", sandbox.cause, &parse_end_cause);
  fields.ignore("infra");  // follows from the rest
  fields.read("end_detail", sandbox.end_detail);
  read_time(fields, "created_at", sandbox.created_at_ms);
  read_time(fields, "started_at", sandbox.started_at_ms);
  read_time(fields, "ended_at", sandbox.ended_at_ms);
  read_time(fields, "expires_at", sandbox.expires_at_ms);
  read_time(fields, "rolled_back_at", sandbox.rolled_back_at_ms);
  // The history holds what has ended, and that is not paused.
  for (const char* name : {"paused_at", "pause_reason", "wake", "lifetime_left_ms", "reclaimed_bytes", "swapped_bytes"}) fields.ignore(name);
  fields.read("fence", sandbox.fence);
  read_time(fields, "data_fault_at", sandbox.data_fault_at_ms);
  fields.read("data_fault", sandbox.data_fault);
  DSEC_TRY(fields.finish());
  return sandbox;
}

}  // namespace dsec::model
