// Contexts, nodes, services, projects and keys.
#include <sys/utsname.h>


#include "cli/terminal.h"
#include "cli/verbs.h"

namespace dsec::cli {
namespace {

constexpr const char* kVersion = "0.1.0";

int show(const json::array& items, const std::vector<Column>& columns, const char* name, const ListingOptions& options) {
  const auto text = listing(items, columns, [name](const json::object& o) { return text_at(o, name); }, options);
  if (!text.ok()) return fail(text.error(), kUsage);
  print(*text);
  return kOk;
}

Column field(const char* title, const char* path, bool wide_only = false) {
  return {title, [path](const json::object& o) { return text_at(o, path); }, wide_only};
}

int outcome(const Result<json::value>& done, const std::string& name) {
  if (!done.ok()) return fail(done.error());
  print(name + "\n");
  return kOk;
}

std::string hosts_text(const json::object& service) {
  std::string out;
  if (const json::value* hosts = value_at(service, "hosts"); hosts && hosts->is_array())
    for (const json::value& host : hosts->get_array()) {
      if (!host.is_object()) continue;
      out += (out.empty() ? "" : ", ") + text_at(host.get_object(), "host");
      if (const std::int64_t port = number_at(host.get_object(), "port")) out += ":" + std::to_string(port);
    }
  return out;
}

const std::vector<Column> kServiceColumns = {
    field("NAME", "name"), {"HOSTS", hosts_text}, field("VIA", "via"), field("SOURCE", "source")};

}  // namespace

int login_verb(const std::string& name, const std::string& url, const std::string& key) {
  ClientConfig config;
  if (auto loaded = load_config(); loaded.ok()) config = std::move(loaded).value();
  else return fail(loaded.error());
  auto address = net::parse_server_address(url);
  if (!address.ok()) return fail(address.error(), kUsage);
  std::string secret = key;
  if (secret.empty()) {
    auto read = read_secret("API key for " + url + ": ");
    if (!read.ok()) return fail(read.error());
    secret = std::move(read).value();
  }
  if (secret.empty()) return fail(invalid_argument("no key was given"), kUsage);
  net::BlockingClient client = client_of(std::move(address).value(), secret);
  HttpCall call;
  call.target = "/v1/whoami";
  auto answer = client.call(call);
  if (!answer.ok()) return fail(std::move(answer).within(url).error());
  if (!answer->success()) return fail(net::error_of(*answer));
  config.contexts[name] = {url, secret, ""};
  config.current = name;
  if (auto saved = save_config(config); !saved.ok()) return fail(saved.error());
  note("logged in to " + url + " as context \"" + name + "\" (" + config_path() + ")");
  return kOk;
}

int context_ls_verb(const ListingOptions& options) {
  auto config = load_config();
  if (!config.ok()) return fail(config.error());
  json::array items;
  for (const auto& [name, entry] : config->contexts)
    items.push_back({{"name", name}, {"url", entry.url}, {"current", name == config->current}});
  const std::vector<Column> columns = {
      {"", [](const json::object& o) { return text_at(o, "current") == "true" ? "*" : ""; }}, field("NAME", "name"), field("URL", "url")};
  return show(items, columns, "name", options);
}

int context_use_verb(const std::string& name) {
  auto config = load_config();
  if (!config.ok()) return fail(config.error());
  if (!config->contexts.contains(name)) return fail(Error(ErrorCode::kNotFound, "there is no context \"" + name + "\": `dsec context ls` lists them"));
  config->current = name;
  const auto saved = save_config(*config);
  return saved.ok() ? kOk : fail(saved.error());
}

int context_rm_verb(const std::string& name) {
  auto config = load_config();
  if (!config.ok()) return fail(config.error());
  if (config->contexts.erase(name) == 0) return fail(Error(ErrorCode::kNotFound, "there is no context \"" + name + "\""));
  if (config->current == name) config->current.clear();
  const auto saved = save_config(*config);
  return saved.ok() ? kOk : fail(saved.error());
}

int node_ls_verb(Context& context, const ListingOptions& options) {
  auto items = context.pages("/v1/nodes");
  if (!items.ok()) return fail(items.error());
  return show(*items, {field("NODE", "id"), field("RUNNING", "sandboxes.running"), field("LIVE", "sandboxes.live"), field("LIMIT", "limits.sandboxes"),
                       field("MEMORY_MB", "memory_committed_mb"), field("OF_MB", "limits.memory_mb"), field("AVAILABLE_MB", "memory.available_mb"), field("BRAKE", "memory.brake"),
                       field("COMMANDS", "running_execs")},
              "id", options);
}

int service_ls_verb(Context& context, const ListingOptions& options) {
  auto items = context.pages("/v1/services");
  if (!items.ok()) return fail(items.error());
  return show(*items, kServiceColumns, "name", options);
}

int service_add_verb(Context& context, const ServiceAddOptions& options) {
  json::object body = {{"name", options.name}};
  json::array hosts;
  for (const std::string& text : options.hosts) {
    json::object host;
    const std::size_t colon = text.rfind(':');
    host["host"] = text.substr(0, colon);
    if (colon != std::string::npos) host["port"] = std::atoi(text.c_str() + colon + 1);
    if (!options.addresses.empty()) {
      json::array addresses;
      for (const std::string& address : options.addresses) addresses.emplace_back(address);
      host["addresses"] = addresses;
    }
    hosts.push_back(host);
  }
  body["hosts"] = hosts;
  if (!options.via.empty()) body["via"] = options.via;
  if (!options.env.empty()) {
    json::object env;
    for (const std::string& text : options.env) {
      const std::size_t equals = text.find('=');
      if (equals == std::string::npos || equals == 0) return fail(invalid_argument("-e \"" + text + "\": write NAME=VALUE"), kUsage);
      env[text.substr(0, equals)] = text.substr(equals + 1);
    }
    body["env"] = env;
  }
  return outcome(context.post("/v1/services", body), options.name);
}

int service_rm_verb(Context& context, const std::vector<std::string>& names) {
  int code = kOk;
  for (const std::string& name : names)
    if (const int one = outcome(context.call("DELETE", "/v1/services/" + percent_encode(name)), name); one != kOk) code = one;
  return code;
}

int service_detect_verb(Context& context, bool dry_run, const ListingOptions& options) {
  auto answer = context.post("/v1/services/detect", json::object{{"dry_run", dry_run}});
  if (!answer.ok()) return fail(answer.error());
  json::array items;
  if (answer->is_array()) items = answer->get_array();
  else if (const json::value* found = answer->is_object() ? answer->get_object().if_contains("items") : nullptr; found && found->is_array())
    items = found->get_array();
  if (items.empty()) note("dsec: no package client of the server's machine names a registry");
  return show(items, kServiceColumns, "name", options);
}

int project_verb(Context& context, const std::string& action, const std::string& name, const ListingOptions& options) {
  if (action == "add") return outcome(context.post("/v1/projects", json::object{{"name", name}}), name);
  auto items = context.pages("/v1/projects");
  if (!items.ok()) return fail(items.error());
  return show(*items, {field("NAME", "name"), field("PARENT", "parent")}, "name", options);
}

int key_verb(Context& context, const std::string& action, const std::string& project, const std::string& name, const std::string& role,
             const ListingOptions& options) {
  const std::string keys = "/v1/projects/" + percent_encode(project) + "/keys";
  if (action == "add") {
    json::object body = {{"role", role}};
    if (!name.empty()) body["name"] = name;
    auto made = context.post(keys, body);
    if (!made.ok()) return fail(made.error());
    const std::string key = made->is_object() ? text_at(made->get_object(), "key") : "";
    note("the key is shown this once:");
    print(key.empty() ? pretty(*made) + "\n" : key + "\n");
    return kOk;
  }
  if (action == "rm") return outcome(context.call("DELETE", keys + "/" + percent_encode(name)), name);
  auto items = context.pages(keys);
  if (!items.ok()) return fail(items.error());
  return show(*items, {field("ID", "id"), field("NAME", "name"), field("ROLE", "role")}, "id", options);
}

int whoami_verb(Context& context) {
  auto answer = context.get("/v1/whoami");
  if (!answer.ok()) return fail(answer.error());
  print(pretty(*answer) + "\n");
  return kOk;
}


int version_verb(Context&, bool json_output) {
  utsname host{};
  ::uname(&host);
  if (json_output) print(pretty(json::object{{"version", kVersion}, {"kernel", host.release}, {"machine", host.machine}}) + "\n");
  else print(std::string("dsec ") + kVersion + " (" + host.machine + ", Linux " + host.release + ")\n");
  return kOk;
}

}  // namespace dsec::cli
