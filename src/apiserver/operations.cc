#include "apiserver/operations.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json/object.hpp>

#include "base/error.h"

namespace dsec::apiserver {
namespace {
constexpr std::size_t kRemembered = 1000;
}

std::string_view Operation::state() const {
  if (result) return "succeeded";
  if (error) return error->code() == ErrorCode::kCancelled ? "cancelled" : "failed";
  return cancelled ? "cancelling" : "running";
}

std::shared_ptr<Operation> Operations::start(std::string id, std::string project, std::string kind, std::int64_t now_ms) {
  auto operation = std::make_shared<Operation>();
  operation->id = id;
  operation->project = std::move(project);
  operation->kind = std::move(kind);
  operation->created_at_ms = now_ms;
  operation->changed = std::make_unique<asio::steady_timer>(io_, asio::steady_timer::time_point::max());
  operations_[std::move(id)] = operation;
  return operation;
}

Result<std::shared_ptr<Operation>> Operations::find(const std::string& project, const std::string& id) const {
  const auto found = operations_.find(id);
  if (found == operations_.end() || found->second->project != project) return Error(ErrorCode::kNotFound, "no operation " + id);
  return found->second;
}

void Operations::finish(Operation& operation, Result<boost::json::value> outcome) {
  if (outcome.ok()) {
    operation.result = std::move(outcome).value();
  } else {
    operation.error = std::move(outcome).error();
  }
  finished_.push_back(operation.id);
  touch(operation);
  while (finished_.size() > kRemembered) {
    operations_.erase(finished_.front());
    finished_.pop_front();
  }
}

asio::awaitable<void> Operations::wait(std::shared_ptr<Operation> operation, Instant by) {
  if (operation->finished()) co_return;
  // The shared timer never expires by itself; this wait has its own end.
  asio::steady_timer limit(io_, by);
  limit.async_wait([operation](const boost::system::error_code& cancelled) {
    if (!cancelled) operation->changed->cancel();
  });
  boost::system::error_code woken;
  co_await operation->changed->async_wait(asio::redirect_error(asio::use_awaitable, woken));
}

boost::json::value to_json(const Operation& operation) {
  boost::json::object out{{"id", operation.id},
                          {"kind", operation.kind},
                          {"state", std::string(operation.state())},
                          {"created_at_ms", operation.created_at_ms},
                          {"progress",
                           {{"stage", operation.progress.stage},
                            {"done_bytes", operation.progress.done_bytes},
                            {"total_bytes", operation.progress.total_bytes}}}};
  if (operation.result) out["result"] = *operation.result;
  if (operation.error) {
    const ErrorTraits& of = traits(operation.error->code());
    out["error"] = {{"code", std::string(of.name)}, {"message", operation.error->message()}, {"retryable", of.retryable},
                    {"infra", of.infra},            {"retry", std::string(of.retry)},        {"status", of.http_status}};
  }
  return out;
}

}  // namespace dsec::apiserver
