// A sandbox's files as a layer, and its way out of quarantine.
#include "cli/operation.h"
#include "cli/progress.h"
#include "cli/units_text.h"
#include "cli/verbs.h"

namespace dsec::cli {
namespace {

json::array list_of(const std::vector<std::string>& texts) {
  json::array out;
  for (const std::string& text : texts) out.emplace_back(text);
  return out;
}

}  // namespace

int pack_verb(Context& context, const std::string& sandbox, const PackVerbOptions& options) {
  json::object body{{"name", options.name}};
  if (!options.kind.empty()) body["kind"] = options.kind;
  if (!options.remove.empty()) body["remove"] = list_of(options.remove);
  if (!options.allow.empty()) body["allow"] = list_of(options.allow);
  const auto started = context.post("/v1/sandboxes/" + percent_encode(sandbox) + "/pack", body);
  if (!started.ok()) return fail(started.error());
  std::optional<Progress> progress;
  if (!options.quiet) progress.emplace(options.name);
  const std::string id = started->is_object() ? text_at(started->get_object(), "operation_id") : "";
  const auto packed = follow_operation(context, id, "pack", progress ? &*progress : nullptr);
  if (progress) progress->clear();
  if (!packed.ok()) return fail(packed.error());
  const json::object& layer = packed->get_object();
  if (options.json) print(pretty(*packed) + "\n");
  else if (options.quiet) print(text_at(layer, "digest") + "\n");
  else
    print(text_at(layer, "ref") + "  " + text_at(layer, "digest") + "  " + text_at(layer, "entries") + " entries, " +
          bytes_text(static_cast<std::uint64_t>(number_at(layer, "content_bytes"))) + " of files, in quarantine until `dsec layer promote`\n");
  return kOk;
}

int layer_promote_verb(Context& context, const std::string& ref, const std::string& kind, const std::string& name) {
  std::string target = "/v1/layers/" + percent_encode(ref) + "/promote";
  if (!kind.empty()) target += "?kind=" + percent_encode(kind);
  if (!name.empty()) target += (kind.empty() ? "?name=" : "&name=") + percent_encode(name);
  const auto promoted = context.post(target, json::object());
  if (!promoted.ok()) return fail(promoted.error());
  print(text_at(promoted->get_object(), "ref") + "  " + text_at(promoted->get_object(), "digest") + "\n");
  return kOk;
}

}  // namespace dsec::cli
