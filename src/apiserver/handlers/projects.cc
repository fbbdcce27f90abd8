#include "apiserver/handlers/handlers.h"

namespace dsec::apiserver {
namespace json = boost::json;
namespace {

// Only the default project's admin sees and changes other projects.
bool governs(const model::Principal& principal, const std::string& project) {
  return principal.project == project || (principal.role == model::Role::kAdmin && principal.project == kDefaultProject);
}

json::object describe(const store::ApiKey& key) {
  return {{"id", key.id},     {"project", key.project}, {"name", key.name}, {"role", std::string(model::to_string(key.role))},
          {"created_at_ms", key.created_at_ms}, {"revoked_at_ms", key.revoked_at_ms}};
}

Result<std::string> text_of(const json::object& object, const char* field) {
  const json::value* value = object.if_contains(field);
  if (value == nullptr) return std::string();
  if (!value->is_string()) return invalid_argument(std::string(field) + ": not a string");
  return std::string(value->get_string());
}

Error foreign(const std::string& project) { return Error(ErrorCode::kNotFound, "no project " + project); }

}  // namespace

asio::awaitable<Result<void>> list_projects(ApiServer& server, Call& call) {
  json::array items;
  for (const store::Project& project : server.parts.catalogue.projects())
    if (governs(call.principal, project.name)) items.push_back({{"name", project.name}, {"parent", project.parent}, {"created_at_ms", project.created_at_ms}});
  co_return co_await respond_json(call.exchange, 200, {{"items", std::move(items)}, {"next_cursor", ""}});
}

asio::awaitable<Result<void>> create_project(ApiServer& server, Call& call) {
  DSEC_CO_ASSIGN(const std::string body, co_await call.exchange.read_body(4096));
  DSEC_CO_ASSIGN(const json::object request, parse_object(body, {"name", "parent"}));
  store::Project project;
  DSEC_CO_ASSIGN(project.name, text_of(request, "name"));
  DSEC_CO_ASSIGN(project.parent, text_of(request, "parent"));
  DSEC_CO_TRY(co_await server.parts.catalogue.create_project(project));
  co_return co_await respond_json(call.exchange, 201, {{"name", project.name}, {"parent", project.parent}});
}

asio::awaitable<Result<void>> list_keys(ApiServer& server, Call& call) {
  const std::string& project = call.path.at("project");
  if (!governs(call.principal, project)) co_return foreign(project);
  json::array items;
  for (const store::ApiKey& key : server.parts.catalogue.keys(project)) items.push_back(describe(key));
  co_return co_await respond_json(call.exchange, 200, {{"items", std::move(items)}, {"next_cursor", ""}});
}

asio::awaitable<Result<void>> create_key(ApiServer& server, Call& call) {
  const std::string& project = call.path.at("project");
  if (!governs(call.principal, project)) co_return foreign(project);
  DSEC_CO_ASSIGN(const std::string body, co_await call.exchange.read_body(4096));
  DSEC_CO_ASSIGN(const json::object request, parse_object(body, {"name", "role"}));
  DSEC_CO_ASSIGN(const std::string name, text_of(request, "name"));
  DSEC_CO_ASSIGN(const std::string text, text_of(request, "role"));
  model::Role role = model::Role::kRuntime;
  if (!text.empty()) {
    DSEC_CO_ASSIGN(role, model::parse_role(text));
  }
  DSEC_CO_ASSIGN(const Catalogue::NewKey made, co_await server.parts.catalogue.create_key(project, name, role));
  json::object answer = describe(made.record);
  answer["key"] = made.key;
  co_return co_await respond_json(call.exchange, 201, std::move(answer));
}

asio::awaitable<Result<void>> revoke_key(ApiServer& server, Call& call) {
  const std::string& project = call.path.at("project");
  if (!governs(call.principal, project)) co_return foreign(project);
  DSEC_CO_TRY(co_await server.parts.catalogue.revoke_key(project, call.path.at("id")));
  co_return co_await call.exchange.respond({.status = 204});
}

}  // namespace dsec::apiserver
