// Long calls: look at one, follow it, cancel it.
#include <charconv>

#include "apiserver/handlers/handlers.h"
#include "base/encoding.h"
#include "model/json_text.h"

namespace dsec::apiserver {

asio::awaitable<Result<void>> get_operation(ApiServer& server, Call& call) {
  DSEC_CO_TRY(check_parameters(call.request(), {"wait_ms"}));
  DSEC_CO_ASSIGN(auto operation, server.operations.find(call.principal.project, call.path.at("id")));
  if (const std::string* wait = call.request().parameter("wait_ms")) {
    int ms = 0;
    const auto [end, error] = std::from_chars(wait->data(), wait->data() + wait->size(), ms);
    if (error != std::errc() || end != wait->data() + wait->size() || ms < 0 || ms > 60'000) co_return invalid_argument("wait_ms: a number from 0 to 60000");
    co_await server.operations.wait(operation, server.parts.clock.now() + std::chrono::milliseconds(ms));
  }
  co_return co_await respond_json(call.exchange, 200, to_json(*operation));
}

namespace {

Result<std::uint64_t> number_of(const Call& call, const char* name) {
  std::uint64_t out = 0;
  const std::string* text = call.request().parameter(name);
  if (text == nullptr) return out;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), out);
  if (error != std::errc() || end != text->data() + text->size()) return invalid_argument(std::string(name) + ": a number");
  return out;
}

std::string output_events(const Operation& operation, std::uint64_t& next) {
  std::string out;
  for (const OperationOutput::Piece& piece : operation.output.from(next)) {
    bool lossy = false;
    boost::json::object event{{"offset", piece.offset}, {"step", piece.step}, {"text", to_utf8(piece.bytes, &lossy)}};
    if (lossy) event["bytes_base64"] = to_base64(piece.bytes);
    out += "event: output\ndata: " + model::json_text(event) + "\n\n";
    next = piece.offset + piece.bytes.size();
  }
  return out;
}

}  // namespace

// Server-sent events: the operation as it is now, and again after each change, to
// its end. Changes that come faster than the client reads are told as one. What the
// commands of a build print comes between, from ?output_from= on.
asio::awaitable<Result<void>> stream_operation(ApiServer& server, Call& call) {
  constexpr auto kHeartbeat = std::chrono::seconds(15);
  DSEC_CO_TRY(check_parameters(call.request(), {"output_from"}));
  DSEC_CO_ASSIGN(std::uint64_t next, number_of(call, "output_from"));
  DSEC_CO_ASSIGN(auto operation, server.operations.find(call.principal.project, call.path.at("id")));
  DSEC_CO_TRY(co_await call.exchange.begin(200, {{"Content-Type", "text/event-stream"}, {"Cache-Control", "no-store"}}));
  std::string told;
  while (true) {
    const bool last = operation->finished();
    std::string now = model::json_text(to_json(*operation));
    std::string events = output_events(*operation, next);
    if (now != told) events += "event: " + std::string(operation->state()) + "\ndata: " + now + "\n\n";
    DSEC_CO_TRY(co_await call.exchange.write(events.empty() ? std::string(": still here\n\n") : events));
    told = std::move(now);
    if (last || server.stopping) break;
    // What changed while the client read is told before the next wait.
    if (operation->output.end() == next && model::json_text(to_json(*operation)) == told) co_await server.operations.wait(operation, server.parts.clock.now() + kHeartbeat);
  }
  co_return co_await call.exchange.end();
}

asio::awaitable<Result<void>> cancel_operation(ApiServer& server, Call& call) {
  DSEC_CO_ASSIGN(auto operation, server.operations.find(call.principal.project, call.path.at("id")));
  operation->cancelled = true;
  server.operations.touch(*operation);
  co_return co_await respond_json(call.exchange, 202, to_json(*operation));
}

}  // namespace dsec::apiserver
