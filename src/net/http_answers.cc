#include <boost/json.hpp>

#include "base/encoding.h"
#include "net/exchange.h"

namespace dsec::net {

namespace json = boost::json;

HttpResponse json_response(int status, std::string text) {
  return {.status = status,
          .headers = {{"Content-Type", "application/json"}, {"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}},
          .body = std::move(text)};
}

HttpResponse error_response(const Error& error, const ErrorAnswer& answer) {
  const ErrorTraits& of = traits(error.code());
  const int status = answer.status != 0 ? answer.status : of.http_status;
  bool lossy = false;
  json::object details;
  for (const auto& [key, value] : answer.details) details[key] = to_utf8(value, &lossy);
  json::object body{{"code", json::string(of.name.data(), of.name.size())},
                    {"message", to_utf8(error.message(), &lossy)},
                    {"retryable", of.retryable},
                    {"infra", answer.infra.value_or(of.infra)},
                    {"retry", json::string(of.retry.data(), of.retry.size())},
                    {"details", std::move(details)}};
  HttpResponse response = json_response(status, json::serialize(json::object{{"error", std::move(body)}}));
  if (status == 429 || status == 503) response.headers.emplace_back("Retry-After", "1");
  if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  for (const auto& header : answer.headers) response.headers.push_back(header);
  return response;
}

HttpResponse error_response(const Error& error) { return error_response(error, {}); }

}  // namespace dsec::net
