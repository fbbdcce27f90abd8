#include <boost/json.hpp>

#include <algorithm>

#include "base/encoding.h"
#include "net/blocking_client.h"
#include "net/exchange.h"

namespace dsec::net {

namespace json = boost::json;

HttpResponse json_response(int status, std::string text) {
  return {.status = status,
          .headers = {{"Content-Type", "application/json"}, {"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}},
          .body = std::move(text)};
}

json::object error_object(const Error& error, const ErrorAnswer& answer) {
  const ErrorTraits& of = traits(error.code());
  bool lossy = false;
  json::object details;
  for (const auto& [key, value] : answer.details) details[key] = to_utf8(value, &lossy);
  return {{"code", json::string(of.name.data(), of.name.size())},
          {"message", to_utf8(error.message(), &lossy)},
          {"retryable", of.retryable},
          {"infra", answer.infra.value_or(of.infra)},
          {"retry", json::string(of.retry.data(), of.retry.size())},
          {"details", std::move(details)}};
}

HttpResponse error_response(const Error& error, const ErrorAnswer& answer) {
  const int status = answer.status != 0 ? answer.status : traits(error.code()).http_status;
  HttpResponse response = json_response(status, json::serialize(json::object{{"error", error_object(error, answer)}}));
  if (status == 429 || status == 503) response.headers.emplace_back("Retry-After", "1");
  if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  for (const auto& header : answer.headers) response.headers.push_back(header);
  return response;
}

HttpResponse error_response(const Error& error) { return error_response(error, {}); }

Error error_of(const HttpAnswer& answer) {
  ErrorCode code = ErrorCode::kInternal;
  std::string message = "HTTP " + std::to_string(answer.status);
  std::string name;
  boost::system::error_code failure;
  const json::value body = json::parse(answer.body, failure);
  const json::value* error = !failure && body.is_object() ? body.get_object().if_contains("error") : nullptr;
  if (error && error->is_object()) {
    if (const auto* text = error->get_object().if_contains("message"); text && text->is_string())
      message = std::string(text->get_string());
    if (const auto* text = error->get_object().if_contains("code"); text && text->is_string())
      name = std::string(text->get_string());
  } else if (!answer.body.empty()) {
    message += ": " + answer.body.substr(0, std::min<std::size_t>(200, answer.body.find_last_not_of("\r\n \t") + 1));
  }
  bool known = false;
  for (int number = 1; number <= static_cast<int>(ErrorCode::kDeadlineExceeded); ++number) {
    const ErrorTraits& row = traits(static_cast<ErrorCode>(number));
    if (name.empty() ? row.http_status == answer.status && !known : row.name == name) {
      code = static_cast<ErrorCode>(number);
      known = true;
    }
  }
  return Error(code, std::move(message));
}

}  // namespace dsec::net
