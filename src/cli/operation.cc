#include "cli/operation.h"

#include "cli/table.h"

namespace dsec::cli {

Result<json::value> follow_operation(Context& context, const std::string& id, const std::string& what, Progress* progress) {
  json::object operation;
  DSEC_TRY(context.events("/v1/operations/" + percent_encode(id) + "/events", [&](const json::object& event) -> Result<void> {
    operation = event;
    const std::string stage = text_at(operation, "progress.stage");
    if (progress)
      progress->update(stage.empty() ? text_at(operation, "state") : stage, static_cast<std::uint64_t>(number_at(operation, "progress.done_bytes")),
                       static_cast<std::uint64_t>(number_at(operation, "progress.total_bytes")));
    return {};
  }));
  const std::string state = text_at(operation, "state");
  if (state == "succeeded") return operation["result"];
  if (state != "failed" && state != "cancelled") return Error(ErrorCode::kUnavailable, "the server stopped while operation " + id + " was " + state);
  const std::string message = text_at(operation, "error.message");
  return Error(ErrorCode::kInternal, message.empty() ? "the " + what + " " + state : message);
}

Result<json::value> run_operation(Context& context, const std::string& target, const json::value& body, const std::string& what) {
  DSEC_ASSIGN(const json::value started, context.post(target, body));
  const std::string id = started.is_object() ? text_at(started.get_object(), "operation_id") : "";
  if (id.empty()) return Error(ErrorCode::kInternal, "the server's answer names no operation");
  return follow_operation(context, id, what, nullptr);
}

}  // namespace dsec::cli
