// What keeps layers, and the removal of what nothing keeps.
#include "cli/operation.h"
#include "cli/units_text.h"
#include "cli/verbs.h"

namespace dsec::cli {
namespace {

std::string layer_pin_target(const std::string& ref) { return "/v1/layers/" + percent_encode(ref) + "/pin"; }

std::string held_by_text(const json::object& layer) {
  std::string out;
  const json::value* held = layer.if_contains("held_by");
  if (held == nullptr || !held->is_array()) return out;
  for (const json::value& one : held->get_array())
    if (one.is_string()) out += (out.empty() ? "" : ", ") + printable(std::string(one.get_string()));
  return out;
}

// "ref default/debian:12" or "unused; may be condemned from 2026-12-07 10:00:00Z".
std::string why_text(const json::object& layer) {
  if (const std::string held = held_by_text(layer); !held.empty()) return held;
  if (const std::string why = text_at(layer, "why"); !why.empty()) return why;
  const std::string fate = text_at(layer, "fate");
  const std::int64_t next = number_at(layer, "next_step_at_ms");
  if (fate == "unused") return "nothing holds it; condemned from " + time_text(next);
  if (fate == "condemned") return "nothing holds it; removed from " + time_text(next);
  return "nothing holds it, frees " + bytes_text(static_cast<std::uint64_t>(number_at(layer, "frees_bytes")));
}

std::vector<Column> garbage_columns() {
  return {{"DIGEST", [](const json::object& o) { return text_at(o, "digest").substr(0, 19); }},
          {"KIND", [](const json::object& o) { return text_at(o, "kind"); }},
          {"SIZE", [](const json::object& o) { return bytes_text(static_cast<std::uint64_t>(number_at(o, "size_bytes"))); }},
          {"SOURCE", [](const json::object& o) { return printable(text_at(o, "source")); }, true},
          {"FATE", [](const json::object& o) { return text_at(o, "fate"); }},
          {"WHY", why_text}};
}

std::string kinds_text(const json::object& object) {
  std::string out;
  for (const json::value& kind : object.at("kinds").as_array()) out += (out.empty() ? "" : ", ") + std::string(kind.as_string());
  return out;
}

std::vector<Column> store_columns() {
  return {{"DIGEST", [](const json::object& o) { return text_at(o, "digest").substr(0, 19); }},
          {"KINDS", kinds_text},
          {"FATE", [](const json::object& o) { return text_at(o, "fate"); }},
          {"CONDEMNED", [](const json::object& o) { return time_text(number_at(o, "condemned_at_ms")); }},
          {"BYTES", [](const json::object& o) { return bytes_text(static_cast<std::uint64_t>(number_at(o, "bytes"))); }}};
}

std::string leftovers_text(const json::object& answer, bool dry_run) {
  const json::value* const told = answer.if_contains("leftovers");
  if (told == nullptr || !told->is_object()) return "dsec: this store cannot tell which uploads were never ended";
  const json::object& leftovers = told->get_object();
  return "dsec: " + std::to_string(number_at(leftovers, "found")) + " uploads are under way or were never ended, " + std::to_string(number_at(leftovers, "removed")) +
         (dry_run ? " of them would go now" : " of them went");
}

Result<void> add_seconds(json::object& body, const char* field, const std::string& text) {
  if (text.empty()) return {};
  DSEC_ASSIGN(body[field], parse_seconds(text));
  return {};
}

Result<json::object> collect_request(const CollectOptions& options) {
  json::object body{{"dry_run", options.dry_run}, {"store", options.store}};
  DSEC_TRY(add_seconds(body, "condemn_after_seconds", options.condemn_after).within("--condemn-after"));
  DSEC_TRY(add_seconds(body, "delete_after_seconds", options.delete_after).within("--delete-after"));
  return body;
}

}  // namespace

int layer_gc_verb(Context& context, const CollectOptions& options, const ListingOptions& listing_options) {
  const auto body = collect_request(options);
  if (!body.ok()) return fail(body.error(), kUsage);
  const auto done = options.store ? run_operation(context, "/v1/layers:gc", *body, "collection") : context.post("/v1/layers:gc", *body);
  if (!done.ok()) return fail(done.error());
  const json::object& answer = done->as_object();
  const json::value* items = answer.if_contains(options.store ? "objects" : "layers");
  const auto text = listing(items == nullptr ? json::array() : items->as_array(), options.store ? store_columns() : garbage_columns(),
                            [](const json::object& o) { return text_at(o, "digest"); }, listing_options);
  if (!text.ok()) return fail(text.error(), kUsage);
  print(*text);
  const std::string freed = bytes_text(static_cast<std::uint64_t>(number_at(answer, "freed_bytes")));
  if (options.store)
    note("dsec: " + std::to_string(number_at(answer, "live")) + " objects are named by the leases of " +
         std::to_string(answer.at("nodes").as_array().size()) + " nodes, " + std::to_string(number_at(answer, "not_live")) + " by none");
  if (options.store) note(leftovers_text(answer, options.dry_run));
  note(options.dry_run ? "dsec: a run now would free " + freed : "dsec: " + freed + " freed");
  return kOk;
}

int layer_pin_verb(Context& context, const std::string& ref, const std::string& reason, const std::string& duration) {
  json::object body;
  if (!reason.empty()) body["reason"] = reason;
  if (const auto seconds = add_seconds(body, "seconds", duration); !seconds.ok()) return fail(seconds.error(), kUsage);
  const auto pin = context.post(layer_pin_target(ref), body);
  if (!pin.ok()) return fail(pin.error());
  print(text_at(pin->as_object(), "digest") + "\n");
  return kOk;
}

int layer_unpin_verb(Context& context, const std::string& ref) {
  const auto done = context.call("DELETE", layer_pin_target(ref));
  return done.ok() ? kOk : fail(done.error());
}

int layer_pins_verb(Context& context, const ListingOptions& options) {
  const auto items = context.pages("/v1/pins");
  if (!items.ok()) return fail(items.error());
  const std::vector<Column> columns = {{"DIGEST", [](const json::object& o) { return text_at(o, "digest"); }},
                                       {"UNTIL", [](const json::object& o) { return time_text(number_at(o, "expires_at_ms")); }},
                                       {"SET", [](const json::object& o) { return time_text(number_at(o, "created_at_ms")); }, true},
                                       {"BY", [](const json::object& o) { return text_at(o, "owner"); }, true},
                                       {"REASON", [](const json::object& o) { return printable(text_at(o, "reason")); }}};
  const auto text = listing(*items, columns, [](const json::object& o) { return text_at(o, "digest"); }, options);
  if (!text.ok()) return fail(text.error(), kUsage);
  print(*text);
  return kOk;
}

}  // namespace dsec::cli
