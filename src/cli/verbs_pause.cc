// Pause and resume, of some sandboxes or of all that a selector names.
#include "cli/verbs.h"

namespace dsec::cli {
namespace {

// Members that did not go well are told on standard error; the first decides the exit code.
int bulk(Context& context, const std::string& action, const PauseVerbOptions& options, const net::HeaderList& headers, json::object body) {
  if (options.all) body["all"] = true;
  else body["selector"] = options.selector;
  const json::value request = std::move(body);
  auto answer = context.call("POST", "/v1/sandboxes:" + action, &request, headers);
  if (!answer.ok()) return fail(answer.error());
  int code = kOk;
  const json::value* results = answer->is_object() ? value_at(answer->get_object(), "results") : nullptr;
  if (results == nullptr || !results->is_array()) return fail(Error(ErrorCode::kInternal, "the server's answer has no results"));
  for (const json::value& item : results->get_array()) {
    const json::object& result = item.get_object();
    const std::string message = text_at(result, "error.message");
    if (message.empty()) print(text_at(result, "id") + "\n");
    else code = fail(Error(ErrorCode::kConflict, text_at(result, "id") + ": " + text_at(result, "state") + ": " + message));
  }
  return code;
}

}  // namespace

int pause_verb(Context& context, const std::vector<std::string>& refs, const std::string& action, const PauseVerbOptions& options) {
  const bool many = options.all || !options.selector.empty();
  if (many != refs.empty()) return fail(invalid_argument("name sandboxes, or --selector, or --all"), kUsage);
  if (options.all && !options.selector.empty()) return fail(invalid_argument("--all and --selector exclude one another"), kUsage);
  net::HeaderList headers;
  if (options.fence != 0) headers.emplace_back("X-Dsec-Fence", std::to_string(options.fence));
  json::object body;
  if (!options.wake.empty()) body["wake"] = options.wake;
  if (!options.reason.empty()) body["reason"] = options.reason;
  if (many) return bulk(context, action, options, headers, std::move(body));
  int code = kOk;
  const json::value request = std::move(body);
  for (const std::string& ref : refs) {
    auto done = context.call("POST", sandbox_target(ref, "/" + action), &request, headers);
    if (done.ok()) print(ref + "\n");
    else code = fail(std::move(done).within(ref).error());
  }
  return code;
}

}  // namespace dsec::cli
