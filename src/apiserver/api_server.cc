#include "apiserver/api_server.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <algorithm>
#include <exception>

#include "base/log.h"
#include "model/json_text.h"
#include "model/strict_object.h"

namespace dsec::apiserver {
namespace {

namespace json = boost::json;

std::string_view presented_key(const net::HttpRequest& request) {
  if (const std::string* bearer = request.header("Authorization")) {
    std::string_view text = *bearer;
    if (text.size() > 7 && (text.starts_with("Bearer ") || text.starts_with("bearer "))) return text.substr(7);
    return {};
  }
  if (const std::string* key = request.header("X-API-Key")) return *key;
  return {};
}

bool allows(Access access, const model::Principal& principal) {
  switch (access) {
    case Access::kOpen:
    case Access::kViewer:
      return true;
    case Access::kRuntime:
      return principal.role != model::Role::kViewer;
    case Access::kBuilder:
      return principal.builds();
    case Access::kAdmin:
      return principal.role == model::Role::kAdmin;
    case Access::kOperator:
      return principal.role == model::Role::kAdmin && principal.project == kDefaultProject;
  }
  return false;
}

std::vector<std::string_view> parts_of(std::string_view pattern) {
  std::vector<std::string_view> out;
  while (!pattern.empty()) {
    pattern.remove_prefix(1);  // '/'
    const std::string_view part = pattern.substr(0, pattern.find('/'));
    out.push_back(part);
    pattern.remove_prefix(part.size());
  }
  return out;
}

bool matches(std::string_view pattern, const std::vector<std::string>& segments, std::map<std::string, std::string>& values) {
  const std::vector<std::string_view> parts = parts_of(pattern);
  const bool rest = !parts.empty() && parts.back() == "{rest...}";
  if (rest ? segments.size() < parts.size() - 1 : segments.size() != parts.size()) return false;
  values.clear();
  for (std::size_t i = 0; i < parts.size() - (rest ? 1 : 0); i++) {
    if (parts[i].starts_with('{')) {
      values[std::string(parts[i].substr(1, parts[i].size() - 2))] = segments[i];
    } else if (parts[i] != segments[i]) {
      return false;
    }
  }
  return true;
}

}  // namespace

ApiServer::ApiServer(ServerParts server_parts, ServerOptions server_options)
    : parts(server_parts), options(std::move(server_options)), operations(server_parts.io, server_parts.catalogue), contexts(server_parts.pool), a_build_is_over(server_parts.io, asio::steady_timer::time_point::max()),
      collector({server_parts.io, server_parts.catalogue, server_parts.edge, server_parts.layers, server_parts.pool, server_parts.imports,
                 server_parts.exchange}) {}

asio::awaitable<void> ApiServer::handle(net::Exchange& exchange) {
  Result<void> outcome;
  std::exception_ptr escaped;
  try {
    outcome = co_await dispatch(exchange);
  } catch (...) {
    escaped = std::current_exception();
  }
  if (escaped) {
    // Ours throw nothing: this is a library's, and the request is what is lost.
    std::string what = "unknown";
    try {
      std::rethrow_exception(escaped);
    } catch (const std::exception& e) {
      what = e.what();
    } catch (...) {
    }
    log_error("a handler threw", {{"path", exchange.request().path}, {"what", what}});
    outcome = Error(ErrorCode::kInternal, "the request failed inside the server");
  }
  if (!outcome.ok() && !exchange.answered()) {
    if (outcome.error().code() == ErrorCode::kInternal)
      log_warning("a request failed", {{"path", exchange.request().path}, {"error", outcome.error().message()}});
    (void)co_await exchange.respond(net::error_response(outcome.error()));
  }
}

asio::awaitable<Result<void>> ApiServer::dispatch(net::Exchange& exchange) {
  const net::HttpRequest& request = exchange.request();
  DSEC_CO_ASSIGN(const Addressee to, addressee_of(request, options.hosts));
  if (to.port) {
    co_await parts.edge.serve_port_host(exchange, to.sandbox_id, to.port_number);
    co_return Result<void>();
  }
  std::string allowed;
  for (const Route& route : routes()) {
    std::map<std::string, std::string> values;
    if (!matches(route.pattern, request.segments, values)) continue;
    const std::string_view method = route.method;
    if (method != "*" && method != request.method && !(method == "GET" && request.method == "HEAD")) {
      if (allowed.find(method) == std::string::npos) allowed += (allowed.empty() ? "" : ", ") + std::string(method);
      continue;
    }
    Call call{exchange, {}, std::move(values)};
    if (route.access != Access::kOpen) {
      DSEC_CO_ASSIGN(call.principal, parts.catalogue.authenticate(presented_key(request)));
      if (!allows(route.access, call.principal)) co_return Error(ErrorCode::kPermissionDenied, "this key may not do that");
    }
    co_return co_await route.handler(*this, call);
  }
  if (!allowed.empty()) {
    const Error refused(ErrorCode::kInvalidArgument, request.method + " is not a method of " + request.path);
    co_return co_await exchange.respond(net::error_response(refused, {.status = 405, .headers = {{"Allow", allowed}}}));
  }
  co_return Error(ErrorCode::kNotFound, "no such path: " + request.path);
}

Result<json::object> parse_object(const std::string& body, std::initializer_list<std::string_view> known) {
  DSEC_ASSIGN(json::value value, model::parse_json(body.empty() ? "{}" : body));
  json::object* object = value.if_object();
  if (object == nullptr) return invalid_argument("the body is not a JSON object");
  for (const auto& field : *object)
    if (std::find(known.begin(), known.end(), std::string_view(field.key().data(), field.key().size())) == known.end())
      return invalid_argument("unknown field: " + std::string(field.key()));
  return std::move(*object);
}

Result<void> check_parameters(const net::HttpRequest& request, std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : request.query)
    if (std::find(known.begin(), known.end(), name) == known.end()) return invalid_argument("unknown parameter: " + name);
  return {};
}

asio::awaitable<Result<void>> respond_json(net::Exchange& exchange, int status, const json::value& value) {
  co_return co_await exchange.respond(net::json_response(status, model::json_text(value)));
}

}  // namespace dsec::apiserver
