#include "cli/endpoint.h"

#include <boost/json.hpp>
#include <cstdlib>

#include "sys/file.h"

namespace dsec::cli {
namespace {

constexpr const char* kDefaultUrl = "http://127.0.0.1:7780";
constexpr const char* kDefaultKeyFile = "/var/lib/dsec/admin.key";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  return text;
}

std::string without_slash(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  return url;
}

std::string text_of(const boost::json::object& object, std::string_view key) {
  const boost::json::value* value = object.if_contains(key);
  return value && value->is_string() ? std::string(value->get_string()) : std::string();
}

}  // namespace

std::string config_path() {
  std::string base = environment("XDG_CONFIG_HOME");
  if (base.empty()) base = (environment("HOME").empty() ? "/root" : environment("HOME")) + "/.config";
  return base + "/dsec/config.json";
}

Result<ClientConfig> load_config() {
  ClientConfig out;
  auto text = sys::read_file(config_path());
  if (!text.ok()) {
    if (text.error().code() == ErrorCode::kNotFound) return out;
    return std::move(text).error();
  }
  boost::system::error_code failure;
  const boost::json::value value = boost::json::parse(*text, failure);
  if (failure || !value.is_object()) return invalid_argument(config_path() + " is no JSON object: mend it, or remove it and use `dsec login` again");
  out.current = text_of(value.get_object(), "current");
  if (const auto* contexts = value.get_object().if_contains("contexts"); contexts && contexts->is_object()) {
    for (const auto& [name, entry] : contexts->get_object()) {
      if (!entry.is_object()) continue;
      out.contexts[std::string(name)] = {without_slash(text_of(entry.get_object(), "url")), text_of(entry.get_object(), "api_key"),
                                         "context " + std::string(name)};
    }
  }
  return out;
}

Result<void> save_config(const ClientConfig& config) {
  boost::json::object contexts;
  for (const auto& [name, entry] : config.contexts) contexts[name] = {{"url", entry.url}, {"api_key", entry.api_key}};
  const boost::json::object whole = {{"current", config.current}, {"contexts", contexts}};
  const std::string path = config_path();
  DSEC_TRY(sys::make_directories(path.substr(0, path.rfind('/')), 0700));
  return sys::replace_file(path, boost::json::serialize(whole) + "\n", 0600);
}

Result<Endpoint> find_endpoint(const std::string& url_flag, const std::string& context_flag) {
  Endpoint out;
  out.url = url_flag;
  out.origin = "--url";
  if (out.url.empty() && context_flag.empty()) {
    out.url = environment("DSEC_URL");
    out.origin = "DSEC_URL";
  }
  out.url = without_slash(out.url);
  if (context_flag.empty()) out.api_key = environment("DSEC_API_KEY");
  if (out.url.empty() || out.api_key.empty()) {
    DSEC_ASSIGN(const ClientConfig config, load_config());
    std::string name = context_flag.empty() ? environment("DSEC_CONTEXT") : context_flag;
    const bool named = !name.empty();
    if (name.empty()) name = config.current;
    const auto found = config.contexts.find(name);
    if (named && found == config.contexts.end())
      return Error(ErrorCode::kNotFound, "there is no context \"" + name + "\": `dsec context` lists them, `dsec login --name " + name + " URL` makes one");
    if (found != config.contexts.end()) {
      const Endpoint& context = found->second;
      if (out.url.empty()) {
        out.url = context.url;
        out.origin = context.origin;
      }
      if (out.api_key.empty() && out.url == context.url) out.api_key = context.api_key;
    }
  }
  if (out.url.empty()) {
    out.url = kDefaultUrl;
    out.origin = "this machine";
  }
  if (out.api_key.empty() && out.url == kDefaultUrl) {
    if (auto key = sys::read_file(kDefaultKeyFile, 4096); key.ok()) out.api_key = trimmed(*key);
  }
  return out;
}

}  // namespace dsec::cli
