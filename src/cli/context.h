// What every verb works with: the server, how to print, how to fail.
#pragma once

#include <boost/json.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "cli/endpoint.h"
#include "net/blocking_client.h"

namespace dsec::cli {

namespace json = boost::json;
using net::HttpAnswer;
using net::HttpCall;
using net::percent_encode;

// Of every verb but run and exec, which hand on the command's own.
enum ExitCode : int { kOk = 0, kFailed = 1, kUsage = 2 };
// Of run and exec, where the command has no code of its own.
enum CommandExit : int { kTimedOut = 124, kDsecFailed = 125, kNotExecutable = 126, kNoSuchCommand = 127, kSignalBase = 128 };

struct GlobalOptions {
  std::string url;
  std::string context;
};

class Context {
 public:
  explicit Context(GlobalOptions options) : options_(std::move(options)) {}

  // The connection, made on first use.
  Result<net::BlockingClient*> client();
  const GlobalOptions& options() const { return options_; }
  const Endpoint& endpoint() const { return endpoint_; }

  // One call with JSON both ways; an empty answer is null. The error of an
  // answer outside 2xx is the server's, and says what to do next.
  Result<json::value> call(const std::string& method, const std::string& target, const json::value* body = nullptr,
                           net::HeaderList headers = {},
                           Duration timeout = std::chrono::seconds(120));
  Result<json::value> get(const std::string& target) { return call("GET", target); }
  Result<json::value> post(const std::string& target, const json::value& body) { return call("POST", target, &body); }
  Result<HttpAnswer> raw(const HttpCall& request, const net::BodySink& sink = {});
  // Server-sent events, each one's data as it comes, until the server ends the stream.
  Result<void> events(const std::string& target, const std::function<Result<void>(const json::object&)>& take);
  // A failure to reach the server, with what to do about it.
  Error explained(Error error) const;
  // Every page of a listing.
  Result<json::array> pages(const std::string& target);

 private:
  const GlobalOptions options_;
  Endpoint endpoint_;
  std::unique_ptr<net::BlockingClient> client_;
};

net::BlockingClient client_of(net::ServerAddress address, const std::string& api_key);
std::string sandbox_target(std::string_view ref, std::string_view tail = "");
// "dsec: message", with advice where there is some; returns `code`.
int fail(const Error& error, int code = kFailed);
void note(std::string_view line);  // on standard error
void print(std::string_view text);  // on standard output, whole

}  // namespace dsec::cli
