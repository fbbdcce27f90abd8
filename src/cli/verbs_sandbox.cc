// Sandboxes as objects: make, list, look at, end.
#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <thread>

#include "base/encoding.h"
#include "base/random.h"
#include "cli/units_text.h"
#include "cli/verbs.h"
#include "model/json_text.h"

namespace dsec::cli {
namespace {

constexpr auto kRestartGrace = std::chrono::seconds(60);
constexpr auto kRestartPause = std::chrono::milliseconds(200);

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Result<std::map<std::string, std::string>> pairs(const std::vector<std::string>& texts, const char* flag, bool from_environment) {
  std::map<std::string, std::string> out;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    if (equals == 0) return invalid_argument(std::string(flag) + " \"" + text + "\": the name is missing");
    if (equals == std::string::npos) {
      if (!from_environment) return invalid_argument(std::string(flag) + " \"" + text + "\": write NAME=VALUE");
      if (const char* value = std::getenv(text.c_str())) out[text] = value;
      continue;
    }
    out[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return out;
}

json::object object_of(const std::map<std::string, std::string>& pairs) {
  json::object out;
  for (const auto& [key, value] : pairs) out[key] = value;
  return out;
}

std::string environment_text(const json::object& item) {
  std::string out = text_at(item, "image");
  if (out.empty()) out = text_at(item, "environment.base");
  if (out.empty()) out = text_at(item, "snapshot");
  const std::string workspace = text_at(item, "environment.workspace");
  if (!workspace.empty()) out += (out.empty() ? "" : " + ") + workspace;
  for (const char* field : {"environment.toolkits", "environment.diffs"})
    if (const json::value* layers = value_at(item, field); layers && layers->is_array())
      for (const json::value& layer : layers->get_array())
        if (layer.is_string()) out += " + " + std::string(layer.get_string());
  return out;
}

std::string labels_text(const json::object& item) {
  std::string out;
  if (const json::value* labels = value_at(item, "labels"); labels && labels->is_object())
    for (const auto& [key, value] : labels->get_object())
      out += (out.empty() ? "" : ",") + std::string(key) + "=" + (value.is_string() ? std::string(value.get_string()) : "");
  return out;
}

std::string state_text(const json::object& item) {
  std::string out = text_at(item, "state");
  if (const std::int64_t since = time_at(item, "paused_at"); since > 0) out += " " + age_text(now_ms() - since);
  const std::string cause = text_at(item, "cause");
  if (!cause.empty() && cause != "none") out += " (" + cause + (text_at(item, "infra") == "true" ? ", infra" : "") + ")";
  return out;
}

std::string id_of(const json::object& item) { return text_at(item, "id"); }

// Every ref, also after one has failed; the first failure decides the exit code.
template <typename Action>
int for_each_ref(const std::vector<std::string>& refs, Action action) {
  int code = kOk;
  for (const std::string& ref : refs)
    if (Result<void> done = action(ref); !done.ok()) code = fail(std::move(done).within(ref).error());
  return code;
}

}  // namespace

Result<json::object> sandbox_spec(const SpecOptions& options) {
  json::object spec;
  json::object environment;
  json::object resources;
  json::object lifetime;
  if (!options.snapshot.empty()) {
    if (!options.image.empty() || !options.base.empty() || !options.workspace.empty() || !options.toolkits.empty() || !options.diffs.empty())
      return invalid_argument("--snapshot excludes --image, --base and layers");
    spec["snapshot"] = options.snapshot;
  } else if (options.image.empty() == options.base.empty())
    return invalid_argument(options.image.empty() ? "--image (or --base) is needed: `dsec image ls` shows what is there"
                                                  : "--image and --base exclude one another");
  if (!options.image.empty()) spec["image"] = options.image;
  if (!options.base.empty()) environment["base"] = options.base;
  if (!options.workspace.empty()) environment["workspace"] = options.workspace;
  for (const auto& [field, refs] : {std::pair("toolkits", &options.toolkits), std::pair("diffs", &options.diffs)}) {
    if (refs->empty()) continue;
    json::array layers;
    for (const std::string& ref : *refs) layers.emplace_back(ref);
    environment[field] = std::move(layers);
  }
  if (options.cpus > 0) resources["cpu_cores"] = options.cpus;
  if (!options.memory.empty()) {
    DSEC_ASSIGN(resources["memory_mb"], parse_mebibytes(options.memory).within("--memory"));
  }
  if (!options.disk.empty()) {
    DSEC_ASSIGN(resources["disk_mb"], parse_mebibytes(options.disk).within("--disk"));
  }
  if (options.max_processes > 0) resources["max_processes"] = options.max_processes;
  if (!options.idle.empty()) {
    DSEC_ASSIGN(lifetime["idle_seconds"], parse_seconds(options.idle).within("--idle"));
  }
  if (!options.on_timeout.empty()) lifetime["on_timeout"] = options.on_timeout;
  if (!options.max_lifetime.empty()) {
    DSEC_ASSIGN(lifetime["max_seconds"], parse_seconds(options.max_lifetime).within("--max-lifetime"));
  }
  json::object network;
  if (!options.network.empty()) network["mode"] = options.network;
  if (options.network.empty() && !(options.services.empty() && options.allow.empty())) network["mode"] = "proxy";
  if (!options.services.empty()) {
    json::array services;
    for (const std::string& service : options.services) services.emplace_back(service);
    network["services"] = services;
  }
  if (!options.allow.empty()) {
    json::array rules;
    for (const std::string& text : options.allow) {
      json::object rule;
      if (text.find('/') != std::string::npos) {
        rule["cidr"] = text;
      } else {
        const std::size_t colon = text.rfind(':');
        rule["domain"] = text.substr(0, colon);
        if (colon != std::string::npos) rule["port"] = std::atoi(text.c_str() + colon + 1);
      }
      rules.push_back(rule);
    }
    network["rules"] = rules;
  }
  DSEC_ASSIGN(const auto env, pairs(options.env, "-e", true));
  DSEC_ASSIGN(const auto labels, pairs(options.labels, "--label", false));
  if (!environment.empty()) spec["environment"] = environment;
  if (!resources.empty()) spec["resources"] = resources;
  if (!lifetime.empty()) spec["lifetime"] = lifetime;
  if (!network.empty()) spec["network"] = network;
  if (!env.empty()) spec["env"] = object_of(env);
  if (!labels.empty()) spec["labels"] = object_of(labels);
  if (!options.name.empty()) spec["name"] = options.name;
  if (!options.user.empty()) spec["user"] = options.user;
  if (!options.hostname.empty()) spec["hostname"] = options.hostname;
  if (!options.backend.empty()) spec["backend"] = options.backend;
  if (!options.priority.empty()) spec["priority"] = options.priority;
  if (options.no_new_privs) spec["no_new_privs"] = true;
  return spec;
}

Result<json::object> create_sandbox(Context& context, json::object spec, const std::string& wait) {
  std::int64_t seconds = 120;
  if (!wait.empty()) {
    DSEC_ASSIGN(seconds, parse_seconds(wait).within("--wait"));
  }
  SystemRandom random;
  const std::string key = "cli-" + to_hex(random.bytes(16));
  const Deadline deadline = Deadline::in(std::chrono::seconds(seconds));
  while (true) {
    spec["wait_ms"] = std::min<std::int64_t>(30'000, deadline.left_ms());
    const json::value body = spec;
    // The same key waits on for the same sandbox.
    DSEC_ASSIGN(const json::value answer, context.call("POST", "/v1/sandboxes", &body, {{"Idempotency-Key", key}}));
    if (!answer.is_object()) return Error(ErrorCode::kInternal, "the server's answer to a create is no sandbox");
    const json::object& sandbox = answer.get_object();
    const std::string state = text_at(sandbox, "state");
    if (state == "ended") {
      const std::string detail = text_at(sandbox, "end_detail");
      return Error(ErrorCode::kConflict, "sandbox " + id_of(sandbox) + " ended: " + state_text(sandbox) + (detail.empty() ? "" : ": " + detail));
    }
    if (state == "running" || state == "paused" || seconds == 0) return sandbox;
    if (deadline.passed())
      return Error(ErrorCode::kDeadlineExceeded, "sandbox " + id_of(sandbox) + " is still " + state + ": `dsec inspect` shows it, `dsec rm` ends it");
  }
}

int create_verb(Context& context, const SpecOptions& options, const std::string& wait, bool json_output) {
  auto spec = sandbox_spec(options);
  if (!spec.ok()) return fail(spec.error(), kUsage);
  auto sandbox = create_sandbox(context, std::move(spec).value(), wait);
  if (!sandbox.ok()) return fail(sandbox.error());
  print(json_output ? pretty(*sandbox) + "\n" : id_of(*sandbox) + "\n");
  return kOk;
}

int ps_verb(Context& context, const ListOptions& options) {
  std::string target = "/v1/sandboxes?limit=500";
  if (!options.selector.empty()) target += "&selector=" + percent_encode(options.selector);
  if (options.all) target += "&state=all";
  else if (!options.state.empty()) target += "&state=" + percent_encode(options.state);
  auto items = context.pages(target);
  if (!items.ok()) return fail(items.error());
  const std::int64_t now = now_ms();
  const std::vector<Column> columns = {
      {"ID", id_of},
      {"NAME", [](const json::object& o) { return text_at(o, "name"); }},
      {"STATE", state_text},
      {"ENVIRONMENT", environment_text},
      {"AGE", [now](const json::object& o) { return age_text(now - time_at(o, "created_at")); }},
      {"LABELS", labels_text},
      {"NODE", [](const json::object& o) { return text_at(o, "node"); }, true},
      {"BACKEND", [](const json::object& o) { return text_at(o, "backend"); }, true},
      {"CPUS", [](const json::object& o) { return text_at(o, "resources.cpu_cores"); }, true},
      {"MEMORY", [](const json::object& o) { return bytes_text(static_cast<std::uint64_t>(number_at(o, "resources.memory_mb")) << 20); }, true},
      {"EXPIRES", [](const json::object& o) { return time_text(time_at(o, "expires_at")); }, true},
  };
  const auto text = listing(*items, columns, id_of, options.listing);
  if (!text.ok()) return fail(text.error(), kUsage);
  print(*text);
  return kOk;
}

int inspect_verb(Context& context, const std::vector<std::string>& refs, const std::string& format) {
  json::array found;
  std::string lines;
  int code = for_each_ref(refs, [&](const std::string& ref) -> Result<void> {
    DSEC_ASSIGN(const json::value answer, context.get(sandbox_target(ref)));
    if (!format.empty() && answer.is_object()) {
      DSEC_ASSIGN(const std::string line, apply_format(format, answer.get_object()));
      lines += line + "\n";
    }
    found.push_back(answer);
    return {};
  });
  if (!format.empty()) print(lines);
  else if (!found.empty()) print((refs.size() == 1 ? pretty(found[0]) : pretty(found)) + "\n");
  return code;
}

int stats_verb(Context& context, const std::vector<std::string>& refs, const ListingOptions& options) {
  std::vector<std::string> wanted = refs;
  if (wanted.empty()) {
    auto all = context.pages("/v1/sandboxes?state=running&limit=500");
    if (!all.ok()) return fail(all.error());
    for (const json::value& item : *all)
      if (item.is_object()) wanted.push_back(id_of(item.get_object()));
  }
  json::array items;
  const int code = for_each_ref(wanted, [&](const std::string& ref) -> Result<void> {
    DSEC_ASSIGN(json::value answer, context.get(sandbox_target(ref, "/stats")));
    if (answer.is_object()) {
      if (!answer.get_object().contains("id")) answer.get_object()["id"] = ref;
      items.push_back(std::move(answer));
    }
    return {};
  });
  const auto bytes_at = [](const char* path) {
    return [path](const json::object& o) { return bytes_text(static_cast<std::uint64_t>(number_at(o, path))); };
  };
  const std::vector<Column> columns = {
      {"ID", id_of},
      {"CPU", [](const json::object& o) { return fmt::format("{:.2f} s", static_cast<double>(number_at(o, "cpu_usec")) / 1e6); }},
      {"MEMORY", bytes_at("memory_bytes")},
      {"PEAK", bytes_at("memory_peak_bytes")},
      {"DISK", [](const json::object& o) { return o.contains("disk_bytes") ? bytes_text(static_cast<std::uint64_t>(number_at(o, "disk_bytes"))) : "-"; }},
      {"PROCESSES", [](const json::object& o) { return text_at(o, "processes"); }},
      {"OOM", [](const json::object& o) { return text_at(o, "oom_kills"); }},
  };
  const auto text = listing(items, columns, id_of, options);
  if (!text.ok()) return fail(text.error(), kUsage);
  print(*text);
  return code;
}

int execs_verb(Context& context, const std::string& ref, const ListingOptions& options) {
  auto items = context.pages(sandbox_target(ref, "/exec"));
  if (!items.ok()) return fail(items.error());
  const auto name = [](const json::object& o) { return text_at(o, "exec_id"); };
  const std::vector<Column> columns = {
      {"EXEC", name},
      {"STATE", [](const json::object& o) { return text_at(o, "state"); }},
      {"STATUS", [](const json::object& o) { return text_at(o, "status"); }},
      {"EXIT", [](const json::object& o) { return text_at(o, "exit_code"); }},
      {"COMMAND", [](const json::object& o) { return text_at(o, "command"); }},
  };
  const auto text = listing(*items, columns, name, options);
  if (!text.ok()) return fail(text.error(), kUsage);
  print(*text);
  return kOk;
}

int kill_verb(Context& context, const std::string& ref, const std::string& exec_id, const std::string& signal) {
  std::vector<std::string> targets;
  if (!exec_id.empty()) {
    targets.push_back(exec_id);
  } else {
    auto items = context.pages(sandbox_target(ref, "/exec"));
    if (!items.ok()) return fail(items.error());
    for (const json::value& item : *items)
      if (item.is_object() && text_at(item.get_object(), "state") == "running") targets.push_back(text_at(item.get_object(), "exec_id"));
  }
  return for_each_ref(targets, [&](const std::string& id) -> Result<void> {
    auto done = context.post(sandbox_target(ref, "/exec/" + percent_encode(id) + "/signal"), {{"signal", signal}});
    return done.ok() ? Result<void>() : Result<void>(std::move(done).error());
  });
}

namespace {
// A server that is restarted meanwhile takes its sandboxes up again.
Result<json::value> get_through_restarts(Context& context, const std::string& target) {
  const Deadline deadline = Deadline::in(kRestartGrace);
  while (true) {
    auto answer = context.get(target);
    if (answer.ok() || answer.error().code() != ErrorCode::kUnavailable || deadline.passed()) return answer;
    std::this_thread::sleep_for(kRestartPause);
  }
}
}  // namespace

int wait_verb(Context& context, const std::vector<std::string>& refs, const std::string& exec_id) {
  for (const std::string& ref : refs) {
    const std::string target = sandbox_target(ref, exec_id.empty() ? "" : "/exec/" + percent_encode(exec_id));
    auto answer = context.get(target);
    while (answer.ok() && text_at(answer->as_object(), "state") != "ended") answer = get_through_restarts(context, target + "?wait_ms=60000");
    if (!answer.ok()) return fail(answer.error());
    print(text_at(answer->as_object(), exec_id.empty() ? "cause" : "exit_code") + "\n");
  }
  return kOk;
}

Result<void> forget_sandbox(Context& context, const std::string& ref) {
  const Deadline deadline = Deadline::in(std::chrono::minutes(5));
  while (true) {
    DSEC_ASSIGN(const json::value answer, context.call("DELETE", sandbox_target(ref, "?forget=true")));
    if (!answer.is_object() || text_at(answer.get_object(), "state") == "ended") return {};
    // The server waits a while itself; one that takes longer to end is not forgotten yet.
    if (deadline.passed()) return Error(ErrorCode::kDeadlineExceeded, ref + " is still ending: it is not forgotten");
  }
}

namespace {
int for_each_chosen(Context& context, std::vector<std::string> targets, const std::string& selector, const char* state,
                    const std::function<Result<void>(const std::string&)>& action) {
  if (!selector.empty()) {
    auto found = context.pages(std::string("/v1/sandboxes?limit=500&state=") + state + "&selector=" + percent_encode(selector));
    if (!found.ok()) return fail(found.error());
    for (const json::value& item : *found)
      if (item.is_object()) targets.push_back(id_of(item.get_object()));
  }
  return for_each_ref(targets, [&](const std::string& ref) -> Result<void> {
    DSEC_TRY(action(ref));
    print(ref + "\n");
    return {};
  });
}
}  // namespace

int stop_verb(Context& context, const std::vector<std::string>& refs, const std::string& selector) {
  return for_each_chosen(context, refs, selector, "", [&](const std::string& ref) -> Result<void> {
    auto done = context.call("DELETE", sandbox_target(ref));
    return done.ok() ? Result<void>() : Result<void>(std::move(done).error());
  });
}

int rm_verb(Context& context, const std::vector<std::string>& refs, const std::string& selector) {
  return for_each_chosen(context, refs, selector, "all", [&](const std::string& ref) { return forget_sandbox(context, ref); });
}

int events_verb(Context& context, const std::string& ref, bool follow, bool json_output) {
  const auto line_of = [json_output](const json::value& event) {
    if (json_output || !event.is_object()) return model::json_text(event) + "\n";
    const json::object& o = event.get_object();
    std::string line = time_text(time_at(o, value_at(o, "at") ? "at" : value_at(o, "at_ms") ? "at_ms" : "time"));
    for (const auto& [key, value] : o) {
      if (key == "at" || key == "at_ms" || key == "time") continue;
      line += "  " + std::string(key) + "=" + (value.is_string() ? std::string(value.get_string()) : model::json_text(value));
    }
    return printable(line) + "\n";
  };
  if (!follow && !ref.empty()) {
    auto items = context.pages(sandbox_target(ref, "/events"));
    if (!items.ok()) return fail(items.error());
    for (const json::value& item : *items) print(line_of(item));
    return kOk;
  }
  std::string only;
  if (!ref.empty()) {
    auto sandbox = context.get(sandbox_target(ref));
    if (!sandbox.ok()) return fail(sandbox.error());
    only = text_at(sandbox->as_object(), "id");
  }
  const auto followed = context.events("/v1/events", [&](const json::object& event) -> Result<void> {
    if (only.empty() || text_at(event, "sandbox") == only) print(line_of(event));
    return {};
  });
  return followed.ok() ? kOk : fail(followed.error());
}

}  // namespace dsec::cli
