#include "cli/context.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "cli/table.h"
#include "sys/file.h"

namespace dsec::cli {

Result<net::BlockingClient*> Context::client() {
  if (!client_) {
    DSEC_ASSIGN(endpoint_, find_endpoint(options_.url, options_.context));
    DSEC_ASSIGN(net::ServerAddress address, net::parse_server_address(endpoint_.url));
    client_ = std::make_unique<net::BlockingClient>(client_of(std::move(address), endpoint_.api_key));
  }
  return client_.get();
}

Result<HttpAnswer> Context::raw(const HttpCall& request, const net::BodySink& sink) {
  DSEC_ASSIGN(net::BlockingClient * http, client());
  auto answer = http->call(request, sink);
  if (!answer.ok()) return explained(std::move(answer).error());
  if (answer->success()) return answer;
  Error error = net::error_of(*answer);
  if (error.code() == ErrorCode::kUnauthenticated) return explained(std::move(error));
  if (error.code() == ErrorCode::kExhausted) {
    if (const std::string* after = answer->header("Retry-After"))
      return Error(error.code(), error.message() + " (try again in " + *after + " s)");
  }
  return error;
}

Error Context::explained(Error error) const {
  if (error.error_number() == ECONNREFUSED)
    return Error(ErrorCode::kUnavailable, "no server at " + endpoint_.url + " (by " + endpoint_.origin +
                                              "): start one with `dsec serve`, or name another with DSEC_URL or `dsec login`");
  if (error.code() == ErrorCode::kUnauthenticated)
    return Error(error.code(), error.message() + (endpoint_.api_key.empty()
                                                      ? ": there is no API key for " + endpoint_.url + "; set DSEC_API_KEY or use `dsec login`"
                                                      : ": " + endpoint_.url + " does not know the API key (by " + endpoint_.origin + ")"));
  return error;
}

Result<json::value> Context::call(const std::string& method, const std::string& target, const json::value* body,
                                  net::HeaderList headers, Duration timeout) {
  HttpCall request;
  request.method = method;
  request.target = target;
  request.headers = std::move(headers);
  request.timeout = timeout;
  if (body) {
    request.headers.emplace_back("Content-Type", "application/json");
    request.body = json::serialize(*body);
  }
  DSEC_ASSIGN(const HttpAnswer answer, raw(request));
  if (answer.body.empty()) return json::value(nullptr);
  boost::system::error_code failure;
  json::value value = json::parse(answer.body, failure);
  if (failure) return Error(ErrorCode::kInternal, method + " " + target + ": the answer is no JSON");
  return value;
}

Result<void> Context::events(const std::string& target, const std::function<Result<void>(const json::object&)>& take) {
  HttpCall call;
  call.target = target;
  call.headers = {{"Accept", "text/event-stream"}};
  std::string rest;
  const auto answer = raw(call, [&](std::string_view part) -> Result<void> {
    rest += part;
    for (std::size_t end = rest.find('\n'); end != std::string::npos; end = rest.find('\n')) {
      const std::string line = rest.substr(0, end);
      rest.erase(0, end + 1);
      if (!line.starts_with("data:")) continue;
      boost::system::error_code failure;
      const json::value event = json::parse(line.substr(5), failure);
      if (failure || !event.is_object()) return Error(ErrorCode::kInternal, target + ": an event is no JSON object");
      DSEC_TRY(take(event.get_object()));
    }
    return {};
  });
  return answer.ok() ? Result<void>() : Result<void>(answer.error());
}

Result<json::array> Context::pages(const std::string& target) {
  json::array all;
  std::string cursor;
  while (true) {
    std::string page = target;
    if (!cursor.empty()) page += (page.find('?') == std::string::npos ? "?cursor=" : "&cursor=") + percent_encode(cursor);
    DSEC_ASSIGN(const json::value value, get(page));
    if (value.is_array()) return value.get_array();
    if (!value.is_object()) return all;
    if (const json::value* items = value.get_object().if_contains("items"); items && items->is_array())
      for (const json::value& item : items->get_array()) all.push_back(item);
    const std::string next = text_at(value.get_object(), "next_cursor");
    if (next.empty() || next == cursor) return all;
    cursor = next;
  }
}

net::BlockingClient client_of(net::ServerAddress address, const std::string& api_key) {
  net::HeaderList headers = {{"User-Agent", "dsec-cli"}, {"Accept", "*/*"}};
  if (!api_key.empty()) headers.emplace_back("Authorization", "Bearer " + api_key);
  return net::BlockingClient(std::move(address), std::move(headers));
}

std::string sandbox_target(std::string_view ref, std::string_view tail) {
  return "/v1/sandboxes/" + percent_encode(ref) + std::string(tail);
}

int fail(const Error& error, int code) {
  note("dsec: " + printable(error.message()));
  return code;
}

void note(std::string_view line) { std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data()); }

void print(std::string_view text) {
  std::fflush(stdout);
  // A reader that has gone away (`| head`) is no failure of ours.
  (void)sys::write_all(STDOUT_FILENO, text).ok();
}

}  // namespace dsec::cli
