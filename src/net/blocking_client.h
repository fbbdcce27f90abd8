// The HTTP client for programs without an event loop of their own: each call
// blocks its thread. For the command line.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "net/http_client.h"

namespace dsec::net {

class BlockingClient {
 public:
  struct Options {
    Duration connect_timeout = std::chrono::seconds(10);
    Duration call_timeout = std::chrono::hours(24);  // of a whole call
    std::size_t answer_limit = 64 << 20;             // of an answer held in memory
  };
  // `headers` go with every request (Authorization).
  BlockingClient(Endpoint endpoint, HeaderList headers, Options options);
  BlockingClient(Endpoint endpoint, HeaderList headers) : BlockingClient(std::move(endpoint), std::move(headers), Options{}) {}
  ~BlockingClient();

  // Keeps the connection for the next call; a kept one that the server has closed is replaced once.
  Result<HttpResponse> call(const std::string& method, const std::string& target, std::string body = {}, HeaderList headers = {});

  // A call whose bodies are streamed. `next_part` fills a part of the request's
  // body (empty = end); `on_part` takes parts of the answer, false stops. Either may be empty.
  struct Streams {
    std::optional<std::uint64_t> length;                     // of the request's body; none = chunked
    std::function<Result<std::string>()> next_part;
    std::function<void(const ResponseHead&)> on_head;
    std::function<bool(std::string_view)> on_part;
  };
  // The answer without the body that on_part took.
  Result<HttpResponse> stream(const std::string& method, const std::string& target, HeaderList headers, Streams streams);

  // Runs a coroutine to its end on this client's loop: for WebSockets and what else needs both ways at once.
  asio::io_context& loop() { return io_; }
  Result<void> run(asio::awaitable<Result<void>> coroutine);
  asio::awaitable<Result<std::unique_ptr<ClientConnection>>> open();
  const Endpoint& endpoint() const { return endpoint_; }
  HeaderList with_own_headers(HeaderList headers) const;

 private:
  using Outcome = std::optional<Result<HttpResponse>>;
  asio::awaitable<Result<HttpResponse>> do_call(std::string method, std::string target, std::string body, HeaderList headers);
  asio::awaitable<Result<HttpResponse>> do_stream(std::string method, std::string target, HeaderList headers, Streams streams);
  Result<HttpResponse> finish(asio::awaitable<Result<HttpResponse>> call);

  const Endpoint endpoint_;
  const HeaderList headers_;
  const Options options_;
  asio::io_context io_{1};
  std::shared_ptr<ClientConnection> kept_;
  std::shared_ptr<ClientConnection> active_;  // of the call in progress: what its time limit aborts
};

}  // namespace dsec::net
