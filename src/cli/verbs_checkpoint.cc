// Checkpoints, snapshots, and what is made of them.
#include "cli/units_text.h"
#include "cli/verbs.h"

namespace dsec::cli {
namespace {

std::string path_of(const std::string& ref, const char* tail) { return "/v1/sandboxes/" + percent_encode(ref) + tail; }

int keep(Context& context, const std::string& target, json::object body, const std::string& expires, bool json_output) {
  if (!expires.empty()) {
    const auto seconds = parse_seconds(expires);
    if (!seconds.ok()) return fail(invalid_argument("--expires: " + seconds.error().message()), kUsage);
    body["expires_seconds"] = *seconds;
  }
  const auto made = context.post(target, body);
  if (!made.ok()) return fail(made.error());
  const json::object& checkpoint = made->get_object();
  print(json_output ? pretty(*made) + "\n" : text_at(checkpoint, "checkpoint_id") + "\n");
  return kOk;
}

std::string bytes_of(const json::object& o) { return bytes_text(static_cast<std::uint64_t>(number_at(o, "bytes"))); }

}  // namespace

int checkpoint_verb(Context& context, const std::string& ref, const std::string& expires, bool json_output) {
  return keep(context, path_of(ref, "/checkpoints"), {}, expires, json_output);
}

int snapshot_verb(Context& context, const std::string& ref, const std::string& name, const std::string& expires, bool json_output) {
  return keep(context, path_of(ref, "/snapshot"), {{"name", name}}, expires, json_output);
}

int rollback_verb(Context& context, const std::string& ref, const std::string& checkpoint) {
  const auto done = context.post(path_of(ref, "/rollback"), json::object{{"checkpoint_id", checkpoint}});
  if (!done.ok()) return fail(done.error());
  print(text_at(done->get_object(), "id") + "\n");
  return kOk;
}

// Each child a line; why one is not there goes to standard error.
int fork_verb(Context& context, const std::string& ref, std::int64_t count, const std::vector<std::string>& names, bool json_output) {
  json::object body;
  if (count != 0) body["count"] = count;
  if (!names.empty()) body["names"] = json::array(names.begin(), names.end());
  const auto made = context.post(path_of(ref, "/fork"), body);
  if (!made.ok()) return fail(made.error());
  if (json_output) print(pretty(*made) + "\n");
  int code = kOk;
  const json::value* children = value_at(made->get_object(), "sandboxes");
  if (children == nullptr || !children->is_array()) return fail(Error(ErrorCode::kInternal, "the server's answer has no sandboxes"));
  for (const json::value& child : children->get_array()) {
    if (!child.is_object()) continue;
    const std::string id = text_at(child.get_object(), "sandbox.id");
    if (id.empty()) {
      note("dsec: " + printable(text_at(child.get_object(), "error.message")));
      code = kFailed;
    } else if (!json_output) {
      print(id + "\n");
    }
  }
  return code;
}

int checkpoints_verb(Context& context, const std::string& ref, const ListingOptions& options) {
  const auto items = context.pages(ref.empty() ? "/v1/snapshots?limit=1000" : path_of(ref, "/checkpoints"));
  if (!items.ok()) return fail(items.error());
  const auto id_of = [](const json::object& o) { return text_at(o, "checkpoint_id"); };
  const std::vector<Column> columns = {{"ID", id_of},
                                       {"NAME", [](const json::object& o) { return text_at(o, "name"); }},
                                       {"SANDBOX", [](const json::object& o) { return text_at(o, "sandbox"); }},
                                       {"PARENT", [](const json::object& o) { return text_at(o, "parent"); }},
                                       {"SIZE", bytes_of},
                                       {"MADE", [](const json::object& o) { return time_text(time_at(o, "created_at")); }},
                                       {"EXPIRES", [](const json::object& o) { return time_text(time_at(o, "expires_at")); }, true}};
  const auto text = listing(*items, columns, id_of, options);
  if (!text.ok()) return fail(text.error(), kUsage);
  print(*text);
  return kOk;
}

int checkpoints_rm_verb(Context& context, const std::vector<std::string>& refs) {
  int code = kOk;
  for (const std::string& ref : refs)
    if (const auto gone = context.call("DELETE", "/v1/snapshots/" + percent_encode(ref)); !gone.ok()) code = fail(gone.error());
  return code;
}

}  // namespace dsec::cli
