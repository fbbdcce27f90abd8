#include "apiserver/operations.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>

#include "base/error.h"
#include "base/log.h"
#include "model/json_text.h"

namespace dsec::apiserver {
namespace {
constexpr std::size_t kRemembered = 1000;
constexpr std::size_t kKeptOutput = 1 << 20;
constexpr std::size_t kLongestPiece = 16 << 10;
}

void OperationOutput::add(std::size_t step, std::string_view bytes) {
  while (!bytes.empty()) {
    const std::string_view part = bytes.substr(0, kLongestPiece);
    bytes.remove_prefix(part.size());
    pieces_.push_back({end_, step, std::string(part)});
    end_ += part.size();
    kept_bytes_ += part.size();
  }
  while (kept_bytes_ > kKeptOutput) {
    kept_bytes_ -= pieces_.front().bytes.size();
    pieces_.pop_front();
  }
}

std::vector<OperationOutput::Piece> OperationOutput::from(std::uint64_t offset) const {
  std::vector<Piece> out;
  for (auto at = pieces_.rbegin(); at != pieces_.rend() && at->offset >= offset; ++at) out.push_back(*at);
  return {out.rbegin(), out.rend()};
}

std::string_view Operation::state() const {
  if (result) return "succeeded";
  if (error) return error->code() == ErrorCode::kCancelled ? "cancelled" : "failed";
  return cancelled ? "cancelling" : "running";
}

namespace {

store::OperationRecord record_of(const Operation& operation) {
  return {operation.id, operation.project, operation.created_at_ms, !operation.finished(), model::json_text(to_json(operation))};
}

std::string text_at(const boost::json::value& value, std::string_view name) {
  const boost::json::object* object = value.if_object();
  const boost::json::value* found = object != nullptr ? object->if_contains(name) : nullptr;
  return found != nullptr && found->is_string() ? std::string(found->get_string()) : "";
}

ErrorCode code_named(std::string_view name) {
  for (int code = 1; code <= static_cast<int>(ErrorCode::kDeadlineExceeded); ++code)
    if (traits(static_cast<ErrorCode>(code)).name == name) return static_cast<ErrorCode>(code);
  return ErrorCode::kInternal;
}
}  // namespace

Operations::Operations(asio::io_context& io, Catalogue& catalogue) : io_(io), catalogue_(catalogue) {
  for (const store::OperationRecord& earlier : catalogue.earlier_operations()) take_up(earlier);
}

void Operations::take_up(const store::OperationRecord& earlier) {
  boost::system::error_code failed;
  const boost::json::value value = boost::json::parse(earlier.record, failed);
  const boost::json::object* stored = value.if_object();
  const auto operation = add(earlier.id, earlier.project, failed ? "" : text_at(value, "kind"), earlier.created_at_ms);
  if (const boost::json::value* build = stored != nullptr ? stored->if_contains("build") : nullptr; build != nullptr && build->is_object()) operation->build = build->get_object();
  if (const boost::json::value* result = stored != nullptr ? stored->if_contains("result") : nullptr) {
    operation->result = *result;
  } else if (const boost::json::value* error = stored != nullptr ? stored->if_contains("error") : nullptr) {
    operation->error = Error(code_named(text_at(*error, "code")), text_at(*error, "message"));
  } else {
    operation->error = Error(ErrorCode::kUnavailable, "the server was restarted while this ran; nothing of it was kept, start it again");
    cut_off_.push_back(operation->id);
  }
  remember_end(operation->id);
}

std::shared_ptr<Operation> Operations::add(std::string id, std::string project, std::string kind, std::int64_t created_at_ms) {
  auto operation = std::make_shared<Operation>();
  operation->id = id;
  operation->project = std::move(project);
  operation->kind = std::move(kind);
  operation->created_at_ms = created_at_ms;
  operation->changed = std::make_unique<asio::steady_timer>(io_, asio::steady_timer::time_point::max());
  operations_[std::move(id)] = operation;
  return operation;
}

asio::awaitable<Result<std::shared_ptr<Operation>>> Operations::start(std::string id, std::string project, std::string kind, std::int64_t now_ms) {
  std::shared_ptr<Operation> operation = add(id, std::move(project), std::move(kind), now_ms);
  if (Result<void> stored = co_await catalogue_.put_operation(record_of(*operation)); !stored.ok()) {
    operations_.erase(id);
    co_return std::move(stored).error();
  }
  co_return operation;
}

Result<std::shared_ptr<Operation>> Operations::find(const std::string& project, const std::string& id) const {
  const auto found = operations_.find(id);
  if (found == operations_.end() || found->second->project != project) return Error(ErrorCode::kNotFound, "no operation " + id);
  return found->second;
}

std::vector<Operations::CutOff> Operations::cut_off(std::string_view kind) const {
  std::vector<CutOff> out;
  for (const std::string& id : cut_off_) {
    const auto found = operations_.find(id);
    if (found != operations_.end() && found->second->kind == kind) out.push_back({id, found->second->project});
  }
  return out;
}

void Operations::give_up() {
  for (const auto& [id, operation] : operations_) {
    if (!operation->finished()) operation->cancelled = true;
    touch(*operation);
  }
}

asio::awaitable<void> Operations::finish(std::shared_ptr<Operation> operation, Result<boost::json::value> outcome) {
  if (outcome.ok()) {
    operation->result = std::move(outcome).value();
  } else {
    operation->error = std::move(outcome).error();
  }
  remember_end(operation->id);
  touch(*operation);
  if (const Result<void> stored = co_await catalogue_.put_operation(record_of(*operation)); !stored.ok())
    log_warning("the end of an operation was not stored", {{"operation", operation->id}, {"why", stored.error().message()}});
}

void Operations::remember_end(const std::string& id) {
  finished_.push_back(id);
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
  if (operation.progress.layer != 0) {
    out["progress"].get_object()["layer"] = operation.progress.layer;
    out["progress"].get_object()["layers"] = operation.progress.layers;
  }
  if (!operation.build.empty()) out["build"] = operation.build;
  if (operation.result) out["result"] = *operation.result;
  if (operation.error) {
    const ErrorTraits& of = traits(operation.error->code());
    out["error"] = {{"code", std::string(of.name)}, {"message", operation.error->message()}, {"retryable", of.retryable},
                    {"infra", of.infra},            {"retry", std::string(of.retry)},        {"status", of.http_status}};
  }
  return out;
}

}  // namespace dsec::apiserver
